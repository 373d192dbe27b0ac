#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/rpc/admin_client.h"
#include "server/admin/end_check.h"
#include "server/admin/fate.h"
#include "server/admin/local_options.h"
#include "server/admin/local_process.h"
#include "server/admin/local_report.h"
#include "server/admin/local_workers.h"
#include "server/admin/process.h"
#include "server/admin/progress_display.h"

namespace nereus {

// Tells the user which workers end long before the other workers, or long after
// the job. Otherwise the user could not see why the job stands still. Each line
// is written once. Used by one thread.
class EndNotices {
 public:
  // `exit_decides`: LocalWorkers::exit_decides. `display` isn't owned and must
  // outlive this.
  EndNotices(bool exit_decides, ProgressDisplay* display)
      : exit_decides_(exit_decides), display_(display) {}

  // Looks at all processes of the job. `finished_at`: time at which the job
  // finished; absent: it has not.
  void Tell(absl::Span<LocalProcess> processes,
            std::optional<absl::Time> finished_at, absl::Time now);

 private:
  // If exits decide, tells of each worker that has ended with code 0 while
  // others still run 3 s later.
  void TellOfEarlyEnds(absl::Span<LocalProcess> processes, absl::Time now);
  // Tells which workers still run 3 s after the job has finished.
  void TellOfLateEnds(absl::Span<const LocalProcess> processes,
                      absl::Time finished_at, absl::Time now);

  const bool exit_decides_;
  ProgressDisplay* const display_;
  bool is_late_told_ = false;  // True once TellOfLateEnds has looked.
};

// Runs the processes of one job on this computer, from the start of the first
// process to the end of the last one. Run may be called once. During Run, the
// calling thread handles the signals of its own process (ProcessGroup). No
// process of the job outlives Run, however Run ends.
//
// First the coordinator starts, then the other servers and the workers. FateOf
// says what becomes of a process that dies.
//
// At the end, LocalJob first asks the workers that still run to end, and later
// the servers. So the program of a worker has 10 s to save its state, and to
// leave the job.
class LocalJob : private ProcessEvents {
 public:
  // `options` must be valid. `server_program` is the path of nereus-server.
  // `workers` and `display` aren't owned and must outlive this.
  LocalJob(const LocalJobOptions& options, std::string server_program,
           LocalWorkers* workers, ProgressDisplay* display)
      : options_(options),
        server_program_(std::move(server_program)),
        workers_(workers),
        display_(display),
        notices_(workers->exit_decides(), display),
        end_check_(workers->exit_decides(), [this](const std::string& address) {
          return last_status_.ok() ? last_status_
                                   : FetchJobStatus(address, kStatusTimeout);
        }) {}

  // Returns when every process has ended. After a signal, returns OK with
  // LocalOutcome::signal.
  //
  // Errors: kNotFound, there is no such program; kAborted, a process failed, or
  // all workers exited with code 0 before the job was finished;
  // kDeadlineExceeded, a server did not listen or end in time; kUnavailable,
  // the files of the job cannot be written; kInternal, an error of the system.
  // If a process failed, the message has its name, its end, its last lines, and
  // the processes that failed right after it.
  absl::StatusOr<LocalOutcome> Run();

  // Returns the name of the process that made the job fail. Empty: the job has
  // not failed, or no process made it fail.
  const std::string& failed_process() const { return failed_.process; }

  // Returns the number of processes that were started again.
  int restarts() const { return outcome_.restarts; }

  // Returns the end of the worker that made the job fail. Absent: the job has
  // not failed, or a server made it fail.
  const std::optional<ProcessExit>& failed_worker() const {
    return failed_.worker;
  }

 private:
  // Longest time that the coordinator has to say how the job is.
  static constexpr absl::Duration kStatusTimeout = absl::Seconds(1);

  // Events of ProcessGroup.
  void OnOutputLine(int process, const std::string& line) override;
  void OnErrorLine(int process, const std::string& line) override;
  void OnExit(int process, const ProcessExit& exit) override;

  // Steps of Run.
  absl::Status RunProcesses();
  absl::Status StartCoordinator();
  absl::Status StartOthers();
  absl::Status StartProcess(LocalProcess child);
  // Waits until the servers have ended, because all workers have left.
  absl::Status AwaitServers();
  // Sends a signal to all servers, or to all workers, that run; 0: none.
  // Returns the number of processes.
  int Signal(bool servers, int signal);
  // Asks the workers that still run to end. Kills those that have not ended
  // after kWorkerGrace, or when this process gets another signal.
  void StopWorkers();

  // True if all servers, or all workers, have ended or are given up.
  bool HaveEnded(bool servers) const {
    return absl::c_all_of(processes_, [&](const auto& each) {
      return each.is_server != servers || each.is_given_up ||
             each.exit.has_value();
    });
  }

  // Handles events until `is_done` returns true. Errors: kAborted, see Run;
  // kDeadlineExceeded, with `message`, at `deadline`; kCancelled, a signal
  // came, which is in outcome_; those of WaitOnce and StartProcess.
  template <typename Predicate>
  absl::Status WaitUntil(const Predicate& is_done, absl::Time deadline,
                         const std::string& message);

  // Returns the time at which the coordinator ended, if it ended because all
  // workers had left.
  std::optional<absl::Time> FinishedAt() const;
  bool IsFinished() const { return FinishedAt().has_value(); }
  // Returns what the fates of all processes depend on now.
  JobSituation Situation() const;
  // True if a process makes the job fail.
  bool JobHasFailed() const;
  // Starts failed processes again, while restarts are left.
  absl::Status ReplaceTheDead();
  // Asks the coordinator about workers that have ended (EndCheck).
  void LookAtEnds();
  // Gives up each process without which the job goes on.
  void GiveUpTheDead();

  // Returns advice: a flag that would have helped against this end of `child`.
  // Empty: there is none.
  std::string Hint(const LocalProcess& child) const;
  // Waits kSettleTime for other failures with the same cause, and returns the
  // error of the job. Returns OK if the job has finished meanwhile. Errors:
  // kAborted, see Run; kCancelled, see WaitUntil.
  absl::Status Failure();
  std::vector<const LocalProcess*> FailedProcesses() const;
  // Returns the reason that the coordinator or the first of the processes that
  // failed has given; "": there is none. REQUIRES: `failed` is not empty.
  std::string ReasonOfFailure(
      const std::vector<const LocalProcess*>& failed) const;

  const LocalJobOptions options_;
  const std::string server_program_;
  LocalWorkers* const workers_;
  ProgressDisplay* const display_;
  EndNotices notices_;
  EndCheck end_check_;
  // Processes of the job, indexed as in group_.
  std::vector<LocalProcess> processes_;
  // Indices of processes, in the order of ends.
  std::vector<int> exits_;
  // Address of the coordinator's control port. Empty: unknown.
  std::string coordinator_;
  // Last status of the coordinator, if it has ended.
  absl::StatusOr<JobStatus> last_status_ = NotFoundError("it runs");
  // Files of the job, in a folder that Run makes and removes.
  LocalFiles files_;
  // See failed_process() and failed_worker().
  struct {
    std::string process;
    std::optional<ProcessExit> worker;
  } failed_;
  // Result of Run.
  LocalOutcome outcome_;
  // Child processes; null before Run. Last: its destructor ends the processes
  // that still run, and its events use the above.
  std::unique_ptr<ProcessGroup> group_;
};

}  // namespace nereus
