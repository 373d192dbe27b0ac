// Child processes with pipes for their output.
//
// Start forks; the child sets itself up in RunChild and becomes its program.
// WaitOnce polls one signalfd and the pipes of all children; ReadSignals,
// ReadStream and Reap handle what is ready. A child is reported in this order:
// its lines, then its end.
//
// A child that ends takes its own children with it, at once. Only a child that
// was asked to end may leave its children more time: a shell dies of SIGTERM
// while the program that it runs still saves its state. Such a child counts as
// running until its group is empty, or until the group is killed.

#include "server/admin/process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {

namespace {

// Signals that ask this process to end.
constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Time between two looks at groups whose leaders have ended.
constexpr absl::Duration kGroupPeriod = absl::Milliseconds(20);

// True if this process ignores the signal. nohup ignores SIGHUP for the program
// that it starts, and a shell SIGINT for a command in the background.
// Async-signal-safe.
bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

// Returns the signals that the signalfd delivers. Leaves out ignored signals,
// because a signalfd delivers a blocked signal even if it is ignored.
sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int signal : kEndSignals) {
    if (!IsIgnored(signal)) sigaddset(&signals, signal);
  }
  return signals;
}

// Returns the error of a system call. A program that does not exist is a
// mistake of the user, so that error has a code of its own.
absl::Status SystemError(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
  if (error == ENOENT) return NotFoundError(message);
  return InternalError(message);
}

struct Pipe {
  Descriptor read;
  Descriptor write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  return Pipe{Descriptor(ends[0]), Descriptor(ends[1])};
}

// Returns the strings as execve takes them. `strings` must outlive the result.
std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) {
    pointers.push_back(const_cast<char*>(string.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Everything that the child needs between fork and exec. It is made before the
// fork, because only async-signal-safe calls are allowed in between.
struct ExecPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t parent;
  int input;
  int output;
  int error;
  int report;  // Pipe for errno, if the exec fails.
  int guard;   // Descriptor of GroupGuard.
};

// Tells the parent why the child does not become its program.
[[noreturn]] void ReportAndExit(const ExecPlan& plan) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written =
      write(plan.report, &error, sizeof(error));
  _exit(127);
}

// Sets up the child, with async-signal-safe calls alone, and becomes the
// program. If that fails, the child exits.
[[noreturn]] void RunChild(const ExecPlan& plan) {
  setpgid(0, 0);
  GroupGuard::AddOwnGroup(plan.guard);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ReportAndExit(plan);
  // Exits if the parent died before the line above took effect.
  if (getppid() != plan.parent) _exit(127);

  for (const int signal : kEndSignals) {
    if (!IsIgnored(signal)) ::signal(signal, SIG_DFL);
  }
  for (const int signal : {SIGCHLD, SIGPIPE}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (dup2(plan.input, STDIN_FILENO) < 0 ||
      dup2(plan.output, STDOUT_FILENO) < 0 ||
      dup2(plan.error, STDERR_FILENO) < 0) {
    ReportAndExit(plan);
  }
  // The exec closes the descriptors that this process has opened, because they
  // have O_CLOEXEC. This call closes those that this process has inherited,
  // too. An old kernel without the call leaves them open.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  ReportAndExit(plan);
}

// Waits until the child has become its program. Returns 0, or errno of the call
// that failed. A successful exec closes the pipe.
int ExecError(int report) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = read(report, &error, sizeof(error));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(error) ? error : 0;
}

// True if the process has ended. This leaves the process a zombie, so that no
// other process gets its id or its group's id.
bool HasEnded(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

ProcessExit WaitFor(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    NEREUS_CHECK(errno == EINTR) << "waitpid " << pid << ": " << errno;
  }
  if (WIFSIGNALED(status)) return {0, WTERMSIG(status)};
  return {WEXITSTATUS(status), 0};
}

}  // namespace

// Standard output or standard error of a child.
struct ProcessGroup::Stream {
  bool is_error = false;            // True for standard error.
  Descriptor pipe;                  // Read end. Not valid: closed.
  LineBuffer lines{kLineBytesMax};  // Last line, while it is not finished.
};

struct ProcessGroup::Child {
  int index = 0;
  pid_t pid = 0;
  bool running = true;            // False once its end is reported.
  bool is_asked_to_end = false;   // True once it got SIGINT, SIGTERM or SIGHUP.
  bool is_killed = false;         // True once its group got SIGKILL.
  std::array<Stream, 2> streams;  // Standard output and standard error.

  void Signal(int signal) {
    kill(-pid, signal);
    is_killed = is_killed || signal == SIGKILL;
    is_asked_to_end =
        is_asked_to_end || absl::c_linear_search(kEndSignals, signal);
  }

  // True if the process has ended after it was asked to, and its own children
  // have not.
  bool IsOutlived() const {
    return running && is_asked_to_end && !is_killed && HasEnded(pid) &&
           HasOtherMembers(pid);
  }
};

std::string DescribeExit(const ProcessExit& exit) {
  if (exit.signal != 0) {
    return absl::StrCat("was killed by signal ", exit.signal, " (",
                        strsignal(exit.signal), ")");
  }
  return absl::StrCat("exited with code ", exit.code);
}

int ShellCode(const ProcessExit& exit) {
  constexpr int kFirstSignal = 128;
  return exit.signal == 0 ? exit.code : kFirstSignal + exit.signal;
}

std::vector<std::string> EnvironmentWithout(absl::string_view prefix) {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, prefix)) kept.emplace_back(*variable);
  }
  return kept;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Create(
    ProcessEvents* events) {
  // Opens files until 0, 1 and 2 are in use: later pipes must not get the
  // numbers of the standard streams.
  int reserved = 0;
  do {
    reserved = open("/dev/null", O_RDWR);
    if (reserved < 0) return SystemError("/dev/null", errno);
  } while (reserved <= STDERR_FILENO);
  close(reserved);

  // This process may have inherited that SIGCHLD is ignored. Then the kernel
  // would keep no exit codes.
  signal(SIGCHLD, SIG_DFL);
  const sigset_t watched = WatchedSignals();
  sigset_t original;
  const int error = pthread_sigmask(SIG_BLOCK, &watched, &original);
  if (error != 0) return SystemError("pthread_sigmask", error);
  const int fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) {
    const absl::Status status = SystemError("signalfd", errno);
    pthread_sigmask(SIG_SETMASK, &original, nullptr);
    return status;
  }
  auto guard = GroupGuard::Start();
  if (!guard.ok()) {
    close(fd);
    pthread_sigmask(SIG_SETMASK, &original, nullptr);
    return guard.status();
  }
  return std::unique_ptr<ProcessGroup>(
      new ProcessGroup(events, fd, original, *std::move(guard)));
}

ProcessGroup::ProcessGroup(ProcessEvents* events, int signal_fd,
                           const sigset_t& original_mask,
                           std::unique_ptr<GroupGuard> guard)
    : events_(events),
      signal_fd_(signal_fd),
      original_mask_(original_mask),
      guard_(std::move(guard)) {}

ProcessGroup::~ProcessGroup() {
  Stop(absl::Seconds(5));
  pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
}

// Returns only after the child's exec, so that a missing program is an error of
// Start.
absl::StatusOr<int> ProcessGroup::Start(const ProcessOptions& options) {
  if (options.command.empty()) {
    return InvalidArgumentError("no command to start");
  }
  Pipe output = NEREUS_TRY(MakePipe());
  Pipe error = NEREUS_TRY(MakePipe());
  Pipe report = NEREUS_TRY(MakePipe());
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (input.get() < 0) return SystemError("/dev/null", errno);

  const ExecPlan plan = {Pointers(options.command),
                         Pointers(options.environment),
                         getpid(),
                         input.get(),
                         output.write.get(),
                         error.write.get(),
                         report.write.get(),
                         guard_->descriptor()};
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork", errno);
  if (pid == 0) RunChild(plan);

  report.write.Close();
  const int exec_error = ExecError(report.read.get());
  if (exec_error != 0) {
    guard_->Remove(pid);
    WaitFor(pid);
    return SystemError(absl::StrCat("cannot start ", options.command[0]),
                       exec_error);
  }
  auto child = std::make_unique<Child>();
  child->index = static_cast<int>(children_.size());
  child->pid = pid;
  child->streams[0].pipe = std::move(output.read);
  child->streams[1].pipe = std::move(error.read);
  child->streams[1].is_error = true;
  for (const Stream& stream : child->streams) {
    fcntl(stream.pipe.get(), F_SETFL, O_NONBLOCK);
  }
  children_.push_back(std::move(child));
  return children_.back()->index;
}

absl::StatusOr<int> ProcessGroup::WaitOnce(absl::Duration timeout) {
  std::vector<pollfd> polled = {{signal_fd_.get(), POLLIN, 0}};
  // Sources of polled[1], polled[2], ...
  std::vector<std::pair<Child*, Stream*>> sources;
  for (const auto& child : children_) {
    for (Stream& stream : child->streams) {
      if (!stream.pipe.valid()) continue;
      polled.push_back({stream.pipe.get(), POLLIN, 0});
      sources.emplace_back(child.get(), &stream);
    }
  }
  // Looks again soon: no signal tells of the end of a child's child.
  if (is_outlived_) timeout = std::min(timeout, kGroupPeriod);
  // Rounded up, so that a wait for the last microseconds is not a busy one.
  const int64_t timeout_ms = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1))), 0,
      1000000);
  const int ready =
      poll(polled.data(), polled.size(), static_cast<int>(timeout_ms));
  if (ready < 0 && errno != EINTR) return SystemError("poll", errno);
  if (ready <= 0) {
    if (is_outlived_) Reap();
    return 0;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (polled[i + 1].revents == 0) continue;
    ReadStream(*sources[i].first, *sources[i].second);
  }
  if (polled[0].revents != 0) return ReadSignals();
  if (is_outlived_) Reap();
  return 0;
}

// Returns false for an index that Start has not returned: the process could not
// be started.
bool ProcessGroup::Signal(int process, int signal) {
  if (process >= static_cast<int>(children_.size())) return false;
  Child& child = *children_[process];
  if (child.running) child.Signal(signal);
  return child.running;
}

// Asks all children to end before it waits for the first.
void ProcessGroup::Stop(absl::Duration grace) {
  if (running() == 0) return;
  SignalAll(SIGTERM);
  const absl::Time deadline = SteadyNow() + grace;
  while (running() > 0) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) break;
    const absl::StatusOr<int> signal = WaitOnce(left);
    if (!signal.ok() || *signal != 0) break;
  }
  SignalAll(SIGKILL);
  // No process outlives SIGKILL, so the loop ends. It does not call poll, which
  // may have failed above.
  for (const auto& child : children_) {
    while (child->running) {
      if (!HasEnded(child->pid)) usleep(1000);
      Reap();
    }
  }
}

int ProcessGroup::running() const {
  return static_cast<int>(absl::c_count_if(
      children_, [](const auto& child) { return child->running; }));
}

bool ProcessGroup::running(int process) const {
  return children_[process]->running;
}

pid_t ProcessGroup::pid(int process) const { return children_[process]->pid; }

int ProcessGroup::ReadSignals() {
  int end_signal = 0;
  signalfd_siginfo info;
  while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) {
      end_signal = static_cast<int>(info.ssi_signo);
    }
  }
  Reap();
  return end_signal;
}

void ProcessGroup::Report(const Child& child, const Stream& stream,
                          const std::string& line) {
  if (stream.is_error) {
    events_->OnErrorLine(child.index, line);
  } else {
    events_->OnOutputLine(child.index, line);
  }
}

void ProcessGroup::ReadStream(const Child& child, Stream& stream) {
  // Reads 1 MiB at most, which is more than a pipe holds: the others must get
  // their turn while a child writes without a pause.
  constexpr int kReadsMax = 64;
  char buffer[16384];
  for (int i = 0; i < kReadsMax && stream.pipe.valid(); ++i) {
    const ssize_t count = read(stream.pipe.get(), buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return CloseStream(child, stream);
    for (const std::string& line :
         stream.lines.Append(absl::string_view(buffer, count))) {
      Report(child, stream, line);
    }
  }
}

void ProcessGroup::CloseStream(const Child& child, Stream& stream) {
  stream.pipe.Close();
  const std::optional<std::string> rest = stream.lines.Finish();
  if (rest.has_value()) Report(child, stream, *rest);
}

void ProcessGroup::Reap() {
  is_outlived_ = false;
  for (const auto& child : children_) {
    if (!child->running || !HasEnded(child->pid)) continue;
    if (child->IsOutlived()) {
      is_outlived_ = true;
      continue;
    }
    // Kills the children of the child. Until WaitFor, no other process can have
    // the id of the group.
    kill(-child->pid, SIGKILL);
    guard_->Remove(child->pid);
    const ProcessExit exit = WaitFor(child->pid);
    child->running = false;
    // Reads what is in the pipes: the child has written all of its output. Does
    // not wait for their end, because a process that has left the group may
    // have the write ends.
    for (Stream& stream : child->streams) {
      ReadStream(*child, stream);
      CloseStream(*child, stream);
    }
    events_->OnExit(child->index, exit);
  }
}

void ProcessGroup::SignalAll(int signal) {
  for (const auto& child : children_) {
    if (child->running) child->Signal(signal);
  }
}

namespace {

// Length of a line of /proc/N/stat, which has 52 fields, at most.
constexpr std::streamsize kLineBytesMax = 4096;

// True if the process is in the group and runs. A line of /proc/N/stat begins
// "N (name) S parent group", where S is the state, and the name may have spaces
// and brackets. A process that ends meanwhile has no such line, and counts as
// ended.
bool IsRunningMember(const std::filesystem::path& process, pid_t group) {
  // An iterator of the stream would throw an exception if the process ends
  // between the opening and the reading.
  std::ifstream file(process / "stat");
  std::string line(kLineBytesMax, '\0');
  file.read(line.data(), kLineBytesMax);
  line.resize(file.gcount());
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return false;
  char state = 0;
  int parent = 0;
  pid_t group_of_process = 0;
  if (std::sscanf(line.c_str() + end_of_name + 1, " %c %d %d", &state, &parent,
                  &group_of_process) != 3) {
    return false;
  }
  return group_of_process == group && state != 'Z' && state != 'X';
}

}  // namespace

bool HasOtherMembers(pid_t group, const std::string& proc) {
  std::error_code error;
  std::filesystem::directory_iterator entry(proc, error);
  while (!error && entry != std::filesystem::directory_iterator()) {
    pid_t pid = 0;
    const bool is_process =
        absl::SimpleAtoi(entry->path().filename().string(), &pid);
    if (is_process && pid != group && IsRunningMember(entry->path(), group)) {
      return true;
    }
    entry.increment(error);
  }
  return false;
}

std::vector<std::string> LineBuffer::Append(absl::string_view bytes) {
  std::vector<std::string> lines;
  size_t end = 0;
  while ((end = bytes.find('\n')) != absl::string_view::npos) {
    Extend(bytes.substr(0, end));
    lines.push_back(TakeLine());
    bytes.remove_prefix(end + 1);
  }
  Extend(bytes);
  return lines;
}

std::optional<std::string> LineBuffer::Finish() {
  if (line_.empty() && dropped_bytes_ == 0) return std::nullopt;
  return TakeLine();
}

std::string LineBuffer::TakeLine() {
  if (dropped_bytes_ > 0) {
    absl::StrAppend(&line_, " (", std::exchange(dropped_bytes_, 0),
                    " more bytes are cut)");
  }
  return std::exchange(line_, std::string());
}

// Bytes beyond the limit are dropped until the next line feed.
void LineBuffer::Extend(absl::string_view part) {
  const size_t kept = std::min(line_bytes_max_ - line_.size(), part.size());
  line_.append(part.data(), kept);
  dropped_bytes_ += part.size() - kept;
}

}  // namespace nereus
