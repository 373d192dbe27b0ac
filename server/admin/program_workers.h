#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/admin/local_options.h"
#include "server/admin/local_workers.h"
#include "server/admin/prefixed_lines.h"

namespace nereus {

// Returns the number of threads for each of `workers` programs that share
// `cores` cores: at least 1.
int ThreadsOfEach(int cores, int workers);

// Returns the number of cores that this process may run on.
int UsableCores();

// Workers of `nereusctl run`. They run a program of the user, which finds its
// job in its environment (ClientOptions::FromEnvironment):
//
//   NEREUS_COORDINATOR  HOST:PORT of the coordinator
//   NEREUS_JOB_NAME     name of the job
//   NEREUS_NAME         name of the worker: its index. A program that is
//                       started again has the name of its predecessor, and so
//                       takes its place.
//   NEREUS_RANK         index of the worker: its rank at the start of the job
//   NEREUS_NODE, NEREUS_SHARED_MEMORY, NEREUS_LOG_FORMAT  values of the flags
//                       --node, --shared-memory and --log-format
//   NEREUS_SHARE, NEREUS_SHARE_WEIGHT  folder of the worker's device, and the
//                       value of --share-weight
//   NEREUS_LOCAL_RANK, NEREUS_LOCAL_SIZE  index of the worker, and the number
//                       of workers: a program may choose its GPU by them
//
// Each line of a program is shown with its worker in front: [worker-0]. The
// exit of a program decides about the job (exit_decides).
class ProgramWorkers final : public LocalWorkers {
 public:
  // End of one worker.
  struct End {
    // Number of times that its program was started and has ended.
    int starts = 0;
    // Last exit. Absent: none yet.
    std::optional<ProcessExit> exit;
  };

  // `options` must be valid. `command` is the path of the program, then its
  // arguments. `threads` is OMP_NUM_THREADS for each program; absent: that of
  // this process. `own_variables` are variables of this process that the
  // programs do not get. `out` and `err` aren't owned and must outlive this.
  ProgramWorkers(const LocalJobOptions& options,
                 std::vector<std::string> command, std::optional<int> threads,
                 std::vector<std::string> own_variables, PrefixedLines* out,
                 PrefixedLines* err)
      : options_(options),
        command_(std::move(command)),
        threads_(threads),
        own_variables_(std::move(own_variables)),
        out_(out),
        err_(err),
        ends_(options.spec.workers) {}

  bool exit_decides() const override { return true; }
  ProcessOptions Program(int worker,
                         const std::string& coordinator) const override;
  absl::StatusOr<bool> OnOutputLine(int worker,
                                    const std::string& line) override;
  bool ShowErrorLine(int worker, const std::string& line) override;
  void OnExit(int worker, const ProcessExit& exit) override;
  void OnGivenUp(int) override {}
  std::string Progress() const override { return ""; }
  bool has_progress() const override { return false; }
  std::vector<WorkerResult> TakeResults() override { return {}; }

  // Returns the ends of the workers, by index.
  const std::vector<End>& ends() const { return ends_; }

 private:
  const LocalJobOptions options_;
  const std::vector<std::string> command_;
  const std::optional<int> threads_;
  const std::vector<std::string> own_variables_;
  PrefixedLines* const out_;
  PrefixedLines* const err_;
  std::vector<End> ends_;
};

}  // namespace nereus
