#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "server/admin/local_options.h"
#include "server/admin/process.h"
#include "server/admin/progress_display.h"
#include "server/admin/worker_event.h"

namespace nereus {

// Paths of the programs that a job consists of.
struct LocalPrograms {
  std::string server;
  std::string worker;
};

// Where a server listens, both "host:port".
struct ServerAddresses {
  std::string control;
  std::string data;
};

// Reads the one line that nereus-server writes:
//   listening control=127.0.0.1:41234 data=127.0.0.1:41235
// Errors: kInvalidArgument, with the line.
absl::StatusOr<ServerAddresses> ParseListeningLine(absl::string_view line);

// Whether a line of a process's standard error is worth showing: log lines
// (logging.h) from `level` up, and all that is no log line, as that is usually
// the reason of a crash.
bool IsLineShown(absl::string_view line, LogLevel level);

struct LocalOutcome {
  // SIGINT, SIGTERM or SIGHUP, if that ended the job; otherwise 0.
  int signal = 0;

  int restarts = 0;  // Processes that were started again.
  int lost = 0;      // Workers that the job has gone on without.

  // One per worker that was not lost, in the order of their ends, if `signal`
  // is 0.
  std::vector<WorkerResult> workers;
};

// Runs the processes of one job on this machine, from the first shard's start
// to the last process's end. See ProcessGroup for the threads and signals; no
// process outlives Run, however it ends. Used once.
class LocalJob : private ProcessEvents {
 public:
  // `options` must be valid. `display` isn't owned and must outlive this.
  LocalJob(const LocalOptions& options, const LocalPrograms& programs,
           ProgressDisplay* display)
      : options_(options), programs_(programs), display_(display) {}

  // Returns when every process has ended.
  //
  // Errors: kNotFound, no such program; kAborted, a process failed: which one,
  // how it ended, its last lines, and the others that failed right after;
  // kDeadlineExceeded, a server did not listen or end in time.
  absl::StatusOr<LocalOutcome> Run();

  // Whether a worker has said that it trains.
  bool has_run() const { return has_run_; }

 private:
  // What is known about one process.
  struct Member {
    std::string name;  // "coordinator", "shard 0", "worker 2"
    bool is_server = false;
    std::vector<std::string> arguments;
    int slot = 0;                         // Among the workers.
    bool is_replaced = false;             // Another one was started for it.
    bool is_missed = false;               // The job goes on without it.
    std::deque<std::string> error_lines;  // The last ones.
    std::optional<ProcessExit> exit;
    absl::Time exited_at;
    std::string mistake;   // Its first line that makes no sense, explained.
    bool is_done = false;  // A worker that has reported its result.
  };

  void OnOutputLine(int process, const std::string& line) override;
  void OnErrorLine(int process, const std::string& line) override;
  void OnExit(int process, const ProcessExit& exit) override;

  absl::Status StartProcess(Member member);
  absl::Status StartCoordinator();
  absl::Status StartOthers();
  // Whether it is to be started again: those that were killed at once, those
  // that gave up unless it turns out that the job has failed.
  bool IsToBeReplaced(const Member& member, absl::Time now) const;
  bool JobHasFailed() const;
  // Starts those that have died again, as long as that is allowed.
  absl::Status ReplaceTheDead();
  // Notes the workers that were killed, where restarts are not asked for: the
  // others go on.
  void MissTheDead();
  bool IsToBeMissed(const Member& member) const;
  // When the coordinator ended because all workers had left.
  std::optional<absl::Time> FinishedAt() const;
  bool JobIsFinished() const { return FinishedAt().has_value(); }
  // What would have helped against this end of a process; empty: nothing.
  std::string Hint(const Member& member) const;
  absl::Status ReadWorkerLine(Member& member, const std::string& line);

  // Runs the loop until `is_done` holds, or a signal came (then it is returned,
  // otherwise 0). Errors: kAborted, see Run; kDeadlineExceeded, with
  // `deadline_message`.
  template <typename Predicate>
  absl::StatusOr<int> WaitUntil(const Predicate& is_done, absl::Time deadline,
                                const std::string& deadline_message);

  bool HasFailed(const Member& member) const;
  bool AnyHasFailed() const;
  bool WorkersHaveEnded() const;
  std::string DescribeFailure(const Member& member) const;
  // What the first of them that knows it has said last; empty: nothing.
  static std::string ReasonIn(const std::vector<const Member*>& failed);

  // Waits a moment for the failures that follow from the first one, and names
  // the cause.
  absl::Status Failure();

  absl::StatusOr<LocalOutcome> RunProcesses();

  const LocalOptions options_;
  const LocalPrograms programs_;
  ProgressDisplay* const display_;
  std::unique_ptr<ProcessGroup> group_;
  std::vector<Member> members_;  // By process index.
  std::vector<int> exits_;       // Process indices, in the order of their ends.
  std::optional<ServerAddresses> coordinator_;
  bool has_run_ = false;
  int restarts_ = 0;
  int lost_ = 0;
  LocalFiles files_;  // In a folder that Run makes and removes.
  std::vector<std::optional<WorkerProgress>> progress_;  // By slot.
  std::vector<WorkerResult> results_;
};

}  // namespace nereus
