#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/messages/worker_event.h"
#include "server/admin/local_options.h"
#include "server/admin/local_report.h"
#include "server/admin/process.h"
#include "server/admin/progress_display.h"

namespace nereus {

// Paths of the programs of a job.
struct LocalPrograms {
  std::string server;  // nereus-server
  std::string worker;  // nereus-worker
};

// Reads the line that nereus-server writes when it listens, and returns the
// address of the control port:
//   listening control=127.0.0.1:41234 data=127.0.0.1:41235
// Errors: kInvalidArgument, with the line.
absl::StatusOr<std::string> ParseListeningLine(absl::string_view line);

// True if a line of a process's standard error is worth showing: a log line of
// `level` or above (logging.h), or a line that is no log line, which often
// tells the reason of a crash.
bool IsLineShown(absl::string_view line, LogLevel level);

// A process of a local job.
struct LocalProcess {
  // Number of lines that are kept of a process's standard error.
  static constexpr size_t kErrorLinesMax = 12;

  // Name in messages: "coordinator", "shard 0", "worker 2".
  std::string name;
  // True for a server. False: a worker.
  bool is_server = false;
  // Arguments of its program.
  std::vector<std::string> arguments;
  // Index among the workers.
  int worker = 0;

  // True if another process was started for it.
  bool is_replaced = false;
  // True if the job goes on without it.
  bool is_missed = false;
  // True for a worker that has reported its result.
  bool is_done = false;
  // Last lines of its standard error.
  std::deque<std::string> error_lines;
  // Reason why its output makes no sense. Empty: it does.
  std::string mistake;
  // End of the process. Absent: it runs.
  std::optional<ProcessExit> exit;
  // Time of its end.
  absl::Time exited_at;

  bool was_killed() const { return exit.has_value() && exit->signal != 0; }

  // Returns how the process failed: "worker 2 exited with code 1".
  std::string DescribeFailure() const;
};

// Runs the processes of one job on this machine, from the start of the first
// one to the end of the last one. Used once, by one thread. The calling thread
// handles the signals of the process meanwhile (ProcessGroup). No process of
// the job outlives Run, however Run ends.
//
// First the coordinator starts, then the other servers and the workers. A
// process that dies is started again (LocalOptions::restarts), or the job goes
// on without it if it is a worker, or the job fails.
class LocalJob : private ProcessEvents {
 public:
  // `options` must be valid. `display` isn't owned and must outlive this.
  LocalJob(const LocalOptions& options, const LocalPrograms& programs,
           ProgressDisplay* display)
      : options_(options), programs_(programs), display_(display) {}

  // Returns when every process has ended.
  //
  // Errors: kNotFound, there is no such program; kAborted, a process failed:
  // its name, its end, its last lines, and the processes that failed right
  // after it; kDeadlineExceeded, a server did not listen or end in time.
  absl::StatusOr<LocalOutcome> Run();

  // True if a worker has reported progress.
  bool has_run() const { return has_run_; }

 private:
  // Events of ProcessGroup.
  void OnOutputLine(int process, const std::string& line) override;
  void OnErrorLine(int process, const std::string& line) override;
  void OnExit(int process, const ProcessExit& exit) override;
  absl::Status ReadWorkerLine(LocalProcess& child, const std::string& line);

  // Steps of Run.
  absl::Status RunProcesses();
  absl::Status StartCoordinator();
  absl::Status StartOthers();
  absl::Status StartProcess(LocalProcess child);

  // Handles events until `is_done` holds, or a signal comes, which goes to
  // outcome_. Errors: kAborted, see Run; kDeadlineExceeded, with `message`.
  template <typename Predicate>
  absl::Status WaitUntil(const Predicate& is_done, absl::Time deadline,
                         const std::string& message);

  // Returns the end of the coordinator, if it ended because all workers had
  // left.
  std::optional<absl::Time> FinishedAt() const;
  bool IsFinished() const { return FinishedAt().has_value(); }
  // True if the coordinator has ended with an error.
  bool CoordinatorHasFailed() const;
  bool HasFailed(const LocalProcess& child) const;
  // True if a process has failed and no restart can help.
  bool JobHasFailed() const;

  // Starts processes again that died, as far as restarts are left.
  absl::Status ReplaceTheDead();
  bool IsToBeReplaced(const LocalProcess& child, absl::Time now) const;
  // Goes on without workers that were killed, or that do not end.
  void MissTheDead();
  bool IsToBeMissed(const LocalProcess& child) const;

  // Returns the flag that would have kept the job alive. Empty: none.
  std::string Hint(const LocalProcess& child) const;
  // Returns the reason that one of the failed processes gave. Empty: none.
  static std::string ReasonIn(const std::vector<const LocalProcess*>& failed);
  // Waits a moment for failures that follow from the first one, and returns the
  // error of the job.
  absl::Status Failure();
  std::vector<const LocalProcess*> FailedProcesses() const;

  const LocalOptions options_;
  const LocalPrograms programs_;
  ProgressDisplay* const display_;
  // The processes, while Run runs.
  std::unique_ptr<ProcessGroup> group_;
  // Processes of the job, indexed as in group_.
  std::vector<LocalProcess> processes_;
  // Indices of processes, in the order of ends.
  std::vector<int> exits_;
  // Address of the coordinator's control port. Empty: unknown.
  std::string coordinator_;
  // True if a worker has reported progress.
  bool has_run_ = false;
  // Files of the job, in a folder that Run makes and removes.
  LocalFiles files_;
  // Last report of each worker.
  std::vector<std::optional<WorkerProgress>> progress_;
  // Result of Run.
  LocalOutcome outcome_;
};

}  // namespace nereus
