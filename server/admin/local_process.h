#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/admin/process.h"

namespace nereus {

// Reads the line that nereus-server writes when it listens, and returns the
// address of the control port:
//   listening control=127.0.0.1:41234 data=127.0.0.1:41235
// With --http-port, " http=127.0.0.1:41236" follows.
// Errors: kInvalidArgument, with the line.
absl::StatusOr<std::string> ParseListeningLine(absl::string_view line);

// Returns a log line of LogFormat::kJson in the form of kText, without a line
// feed. Returns any other line unchanged.
std::string AsTextLine(const std::string& line);

// True if a line of a process's standard error is worth showing: a log line of
// `level` or above in the form of LogFormat::kText, or a line that is no log
// line, which often tells the reason of a crash.
bool IsLineShown(absl::string_view line, LogLevel level);

// A process of a local job.
struct LocalProcess {
  // Number of lines that are kept of a process's standard error.
  static constexpr size_t kErrorLinesMax = 12;
  // Number of bytes that are kept of each of these lines.
  static constexpr size_t kErrorLineBytesMax = 2000;

  // Name in messages: "coordinator", "shard 0", "worker 2".
  std::string name;
  // True for a server. False: a worker.
  bool is_server = false;
  // Arguments of a server. Not used for a worker: see LocalWorkers::Program.
  std::vector<std::string> arguments;
  // Index of a worker. Not used for a server.
  int worker = 0;

  // True if another process was started in its place.
  bool is_replaced = false;
  // True if the job goes on without this process, or was finished without it.
  bool is_given_up = false;
  // True for a worker that is done (LocalWorkers::exit_decides).
  bool is_done = false;
  // True once the user was told that the process has ended long before others.
  bool is_told = false;
  // True if it was started in the place of another process.
  bool is_restart = false;
  // Answer of the coordinator about a program (EndCheck).
  enum class Seen {
    kNothing,     // None yet.
    kMember,      // The program was a member of the job while it ran.
    kLeftBehind,  // The program was a member after it ended with code 0.
    kRemoved,     // The coordinator removed it after it ended with code 0.
    kLeftEarly,   // The worker left before the job was done.
    kJudged,      // Nothing more is to be asked.
  };
  Seen seen = Seen::kNothing;
  // True for a program that was started again when there was nothing left to
  // do: it had not joined when the job finished, or it failed when all workers
  // had left the job.
  bool is_late = false;
  // Last lines of its standard error, unless LocalWorkers has shown them.
  std::deque<std::string> error_lines;
  // Mistake of the process, apart from its exit: "wrote a line that is not
  // understood: ...". Empty: none.
  std::string mistake;
  // Exit of the process. Absent: it runs.
  std::optional<ProcessExit> exit;
  // Time of its end. Until then, time at which it was started again.
  absl::Time since;

  // True if a signal ended the process, or SIGTERM after it had left the job.
  bool was_killed() const;

  // True if SIGKILL or SIGTERM ended the process, or the program that a shell
  // ran in it. Such a kill comes from outside. Most other signals that end a
  // process are errors of its program: SIGSEGV, SIGABRT, SIGFPE.
  bool was_killed_from_outside() const;

  // Returns how the process failed: "worker 2 exited with code 1". REQUIRES:
  // the process has ended, or `mistake` is not empty.
  std::string DescribeFailure() const;
};

// Returns the reason that one of the failed processes gave in its lines. Empty:
// there is no reason. `failed`: not empty; the likely cause comes first.
std::string ReasonOfFailure(const std::vector<const LocalProcess*>& failed);

}  // namespace nereus
