#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace nereus {

// Writer of lines to standard error that never waits for their reader. Each
// pipe, terminal or disk may stand still for any time: `less`, Ctrl-S, NFS
// without its server. A driver thread that waited for it would send no frames,
// and its worker would count as dead.
//
// A line is written at once if standard error takes it without waiting: a
// pipe, a socket or a terminal with room. Otherwise it waits in a queue, and a
// thread writes the queue. That thread exists only while there are such lines.
// Lines for a file always take this way, because no write to a file is sure to
// return. If the queue is full, lines are dropped until the queue is empty.
// Then a line tells how many were dropped.
//
// Each line is one write(), so that lines of several processes do not mix. Only
// the rest of a line that a terminal or a pipe has taken in part is written
// alone. The flags of standard error stay as they are: other processes share
// them. If the program replaces standard error (dup2), all further lines go to
// the new one, lines in the queue too. A line that has begun ends first: the
// rest of a line on a terminal that stands still, and a line for a file that
// hangs, hold up the queue.
//
// Thread-safe. Is never destroyed: its thread may use it until the process
// ends.
class LogWriter {
 public:
  // Returns the line that tells of `count` dropped lines, the first of which
  // was dropped `ago`. Must not use the LogWriter.
  using DescribeGap = std::string (*)(int64_t count, absl::Duration ago);

  // Largest number of bytes that wait.
  static constexpr size_t kQueuedBytesMax = size_t{1} << 20;
  // Further bytes for important lines.
  static constexpr size_t kReservedBytes = size_t{1} << 16;

  explicit LogWriter(DescribeGap describe_gap) : describe_gap_(describe_gap) {}
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter() = delete;

  // Writes, queues or drops a line. `is_important`: the line may use
  // kReservedBytes.
  void Write(std::string line, bool is_important) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all lines are written, for `limit` at most. Returns false if
  // they are not.
  bool Flush(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of lines that were dropped, or could not be written.
  int64_t dropped_lines() const ABSL_LOCKS_EXCLUDED(mu_);

  // Handlers of pthread_atfork. A child has neither the thread nor the lines of
  // its parent, which the parent writes.
  void BeforeFork() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu_) { mu_.Lock(); }
  void AfterForkInParent() ABSL_UNLOCK_FUNCTION(mu_) { mu_.Unlock(); }
  void AfterForkInChild() ABSL_UNLOCK_FUNCTION(mu_);

 private:
  // A line that waits.
  struct Line {
    std::string text;
    size_t written = 0;  // Bytes at its front that are written already.
  };
  // Lines that were dropped and not told yet.
  struct Gap {
    int64_t count = 0;
    absl::Time since;  // Time of the first one.
  };

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return queue_.empty() && !is_writing_;
  }
  bool HasRoomFor(const std::string& line, bool is_important) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the thread, unless it runs. If the system refuses it, the lines wait
  // for the next call.
  void EnsureThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the next line to write. Nothing: the thread ends.
  std::optional<Line> TakeNext() ABSL_LOCKS_EXCLUDED(mu_);
  // Body of the thread.
  void WriteQueue() ABSL_LOCKS_EXCLUDED(mu_);

  const DescribeGap describe_gap_;

  // No thread waits on this mutex for a condition (Mutex::Await): after a fork,
  // the child would have waiters that do not exist.
  mutable Mutex mu_;
  std::deque<Line> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;  // The thread runs.
  Gap gap_ ABSL_GUARDED_BY(mu_);
  int64_t dropped_lines_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nereus
