#include "common/base/log_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace nereus {
namespace {

// Longest wait for room, after which the thread looks at standard error again:
// the program may have replaced it.
constexpr int kRoomWaitMs = 100;

// Time between two writes that find less room than poll has promised, because
// other processes write, too.
constexpr absl::Duration kRetryPeriod = absl::Milliseconds(10);

// Time between two looks at the queue in Flush.
constexpr absl::Duration kFlushPeriod = absl::Milliseconds(1);

// Writes `line`, or the front of it, to standard error, if that is sure not to
// wait. Returns the number of bytes, or -1 and sets errno: EAGAIN, there is no
// room now; EOPNOTSUPP, standard error cannot be written without the danger of
// waiting; another number, the write has failed.
ssize_t WriteAtOnce(absl::string_view line) {
  struct stat file;
  if (fstat(STDERR_FILENO, &file) != 0) return -1;
  if (!S_ISFIFO(file.st_mode) && !S_ISSOCK(file.st_mode) &&
      !S_ISCHR(file.st_mode)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  // Since Linux 6.4, this works for pipes.
  const iovec bytes = {const_cast<char*>(line.data()), line.size()};
  const ssize_t written =
      pwritev2(STDERR_FILENO, &bytes, 1, /*offset=*/-1, RWF_NOWAIT);
  if (written >= 0 || errno == EAGAIN || errno == EPIPE) return written;
  if (S_ISSOCK(file.st_mode)) {
    return send(STDERR_FILENO, line.data(), line.size(),
                MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  // Opens the pipe or the terminal once more: the flag O_NONBLOCK of standard
  // error itself would also hold for the processes that share it. Closes it at
  // once: programs close descriptors that they do not know, and take their
  // numbers for files.
  const Descriptor again(
      open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!again.valid()) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return write(again.get(), line.data(), line.size());
}

// True if another write may succeed after WriteAtOnce has failed with `error`.
bool HasToWait(int error) {
  return error == EAGAIN || error == EOPNOTSUPP || error == EINTR;
}

// Waits until standard error has room, for kRoomWaitMs at most. Returns false
// if it still has none.
bool AwaitRoom() {
  pollfd polled = {STDERR_FILENO, POLLOUT, 0};
  return poll(&polled, 1, kRoomWaitMs) > 0;
}

// Writes the rest of a line, of which `written` bytes are written. Waits for
// the reader. Returns false if the write fails.
bool WriteWhole(absl::string_view line, size_t written) {
  bool had_room = false;  // There was room for less than a whole line.
  while (written < line.size()) {
    const absl::string_view rest = line.substr(written);
    // The rest of a line is written by one call that waits: the kernel then
    // does not let another process write in between, if this is a terminal.
    ssize_t result = -1;
    errno = EOPNOTSUPP;
    if (written == 0) result = WriteAtOnce(rest);
    if (result < 0 && errno == EOPNOTSUPP) {
      result = write(STDERR_FILENO, rest.data(), rest.size());
    }
    if (result >= 0) {
      written += static_cast<size_t>(result);
    } else if (!HasToWait(errno)) {
      return false;
    } else if (errno == EAGAIN) {
      if (had_room) absl::SleepFor(kRetryPeriod);
      had_room = AwaitRoom();
    }
  }
  return true;
}

}  // namespace

bool LogWriter::HasRoomFor(const std::string& line, bool is_important) const {
  const size_t bytes = queued_bytes_ + line.size();
  if (is_important && bytes <= kQueuedBytesMax + kReservedBytes) return true;
  return gap_.count == 0 && bytes <= kQueuedBytesMax;
}

void LogWriter::Write(std::string line, bool is_important) {
  MutexLock lock(&mu_);
  size_t written = 0;
  if (IsIdle()) {
    const ssize_t result = WriteAtOnce(line);
    if (result < 0 && !HasToWait(errno)) {
      ++dropped_lines_;
      return;
    }
    written = static_cast<size_t>(std::max<ssize_t>(result, 0));
    if (written == line.size()) return;
  } else if (!HasRoomFor(line, is_important)) {
    if (gap_.count++ == 0) gap_.since = SteadyNow();
    ++dropped_lines_;
    return;
  }
  queued_bytes_ += line.size();
  queue_.push_back({std::move(line), written});
  EnsureThread();
}

void LogWriter::EnsureThread() {
  if (is_writing_) return;
  // The thread takes no signals: the program's handlers do not expect it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(&LogWriter::WriteQueue, this).detach();
    is_writing_ = true;
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::optional<LogWriter::Line> LogWriter::TakeNext() {
  Gap gap;
  {
    MutexLock lock(&mu_);
    if (!queue_.empty()) {
      Line line = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= line.text.size();
      return line;
    }
    if (gap_.count == 0) {
      is_writing_ = false;
      return std::nullopt;
    }
    gap = std::exchange(gap_, {});
  }
  return Line{describe_gap_(gap.count, SteadyNow() - gap.since)};
}

void LogWriter::WriteQueue() {
  while (const std::optional<Line> line = TakeNext()) {
    if (WriteWhole(line->text, line->written)) continue;
    MutexLock lock(&mu_);
    ++dropped_lines_;
  }
}

bool LogWriter::Flush(absl::Duration limit) {
  const absl::Time end = SteadyNow() + limit;
  while (true) {
    {
      MutexLock lock(&mu_);
      if (IsIdle()) return true;
      EnsureThread();
    }
    if (SteadyNow() >= end) return false;
    absl::SleepFor(kFlushPeriod);
  }
}

int64_t LogWriter::dropped_lines() const {
  MutexLock lock(&mu_);
  return dropped_lines_;
}

void LogWriter::AfterForkInChild() {
  queue_.clear();
  queued_bytes_ = 0;
  is_writing_ = false;
  gap_ = {};
  dropped_lines_ = 0;
  mu_.Unlock();
}

}  // namespace nereus
