#include "server/admin/reference_workers.h"

#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "server/admin/local_report.h"

namespace nereus {

// Removes the variables NEREUS_*, which set flags of this program. The workers
// get their flags as arguments.
ProcessOptions ReferenceWorkers::Program(int worker,
                                         const std::string& coordinator) const {
  ProcessOptions process;
  process.command = WorkerArguments(options_, worker, coordinator);
  process.command.insert(process.command.begin(), program_);
  process.environment = EnvironmentWithout("NEREUS_");
  return process;
}

// A worker writes progress any number of times, and then its result once.
absl::StatusOr<bool> ReferenceWorkers::OnOutputLine(int worker,
                                                    const std::string& line) {
  WorkerEvent event = NEREUS_TRY(ParseWorkerEvent(line));
  if (auto* progress = std::get_if<WorkerProgress>(&event)) {
    progress_[worker] = *progress;
    has_run_ = true;
    return false;
  }
  results_.push_back(std::get<WorkerResult>(std::move(event)));
  results_.back().process = worker;
  return true;
}

std::string ReferenceWorkers::Progress() const {
  return FormatProgress(progress_);
}

bool ReferenceWorkers::has_progress() const {
  return absl::c_any_of(progress_,
                        [](const auto& each) { return each.has_value(); });
}

}  // namespace nereus
