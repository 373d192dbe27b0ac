#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/protocol/job_status.h"
#include "server/admin/process.h"

namespace nereus {

// Parses the line that nereus-server writes when it listens, such as
//   listening control=127.0.0.1:41234 data=127.0.0.1:41235
// after which --http-port adds " http=127.0.0.1:41236". Returns the address of
// the control port: here, 127.0.0.1:41234. Returns kInvalidArgument, with the
// line, for any other line.
absl::StatusOr<std::string> ParseListeningLine(absl::string_view line);

// Returns a log line of LogFormat::kJson in the form of kText, without a line
// feed. Returns any other line unchanged.
std::string AsTextLine(const std::string& line);

// True if a line of a process's standard error is worth showing: a log line of
// `level` or above, or any line that is no log line, because that often tells
// the reason of a crash. REQUIRES: AsTextLine has returned the line.
bool IsLineShown(absl::string_view line, LogLevel level);

// A process of a local job.
struct LocalProcess {
  // Largest number of last lines of standard error that are kept.
  static constexpr size_t kErrorLinesMax = 12;
  // Largest number of first bytes that are kept of each of these lines.
  static constexpr size_t kErrorLineBytesMax = 2000;

  // Name in messages: "coordinator", "shard 0", "worker 2".
  std::string name;
  // True for a server. False: a worker.
  bool is_server = false;
  // True for the server that coordinates: a process of its own, or shard 0.
  bool coordinates = false;
  // Arguments of a server. Not used for a worker: see LocalWorkers::Program.
  std::vector<std::string> arguments;
  // Number of a worker among those that this program starts, from 0; a worker
  // that takes its place has the same. Not used for a server.
  int worker = 0;

  // True if another process was started in its place.
  bool is_replaced = false;
  // True if the process has failed and is not started again: the job goes on
  // without it, or was finished without it.
  bool is_given_up = false;
  // True for a worker that has done its work: nereus-worker has reported its
  // result, or another program has ended with code 0
  // (LocalWorkers::exit_decides).
  bool is_done = false;
  // True once the user was told that this process has ended a while ago, and
  // that others still run.
  bool is_told = false;
  // True if it was started in the place of another process.
  bool is_restart = false;
  // State of a program by the coordinator's answers (EndCheck).
  enum class Seen {
    kNothing,     // No answer has named it yet.
    kMember,      // When last seen, it ran and was a member of the job.
    kLeftBehind,  // The program was a member after it ended with code 0.
    kLeftEarly,   // The worker left before the job was done.
    kJudged,      // Nothing more is to be asked.
  };
  Seen seen = Seen::kNothing;
  // True for a program that was started again too late: when the job finished,
  // it had not joined yet, or it failed after all workers had left the job.
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
  // Times of its start and of its end, by the clock of the job's events.
  absl::Time started_at;
  absl::Time ended_at;

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

// Returns what the file of nereus-server --last-status says: the job's state
// and reason, the workers, and the events with a member. Errors: kUnavailable,
// the file cannot be read; kInvalidArgument, it is no such file.
absl::StatusOr<JobStatus> ReadLastStatus(const std::string& file);

}  // namespace nereus
