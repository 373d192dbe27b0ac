#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/admin/local_options.h"
#include "server/admin/local_workers.h"

namespace nereus {

// Workers of `nereusctl local`. They run nereus-worker, which reports progress
// and its result as lines of JSON (WorkerEvent).
class ReferenceWorkers final : public LocalWorkers {
 public:
  // `options` must be valid. `program` is the path of nereus-worker.
  ReferenceWorkers(const LocalOptions& options, std::string program)
      : options_(options),
        program_(std::move(program)),
        progress_(options.spec.workers) {}

  bool exit_decides() const override { return false; }
  ProcessOptions Program(int worker,
                         const std::string& coordinator) const override;
  absl::StatusOr<bool> OnOutputLine(int worker,
                                    const std::string& line) override;
  bool ShowErrorLine(int, const std::string&) override { return false; }
  void OnExit(int, const ProcessExit&) override {}
  void OnGivenUp(int worker) override { progress_[worker].reset(); }
  std::string Progress() const override;
  bool has_progress() const override;
  std::vector<WorkerResult> TakeResults() override {
    return std::exchange(results_, {});
  }

  // True if any worker has ever reported progress.
  bool has_run() const { return has_run_; }

 private:
  const LocalOptions options_;
  const std::string program_;
  // Last progress of each worker. Absent: none, or it is given up.
  std::vector<std::optional<WorkerProgress>> progress_;
  // True if any worker has ever reported progress.
  bool has_run_ = false;
  // Results, in the order of their lines.
  std::vector<WorkerResult> results_;
};

}  // namespace nereus
