#include "worker/client/job_notes.h"

#include <optional>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/protocol/job_spec.h"

namespace nereus {

void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state) {
  NEREUS_LOG(Info, {LogEvent::kMemberJoined})
      << "joined job " << job << ": "
      << DescribeJobSpec(SpecOf(options), /*told=*/true);
  // Momentum and Adam keep state, and a worker that joins needs a copy of it.
  const bool has_state = options.optimizer.rule == UpdateRule::kAdam ||
                         options.optimizer.momentum > 0;
  if (options.optimizer_place != OptimizerPlace::kWorker || keeps_state ||
      !has_state) {
    return;
  }
  NEREUS_LOG(Warning)
      << "this worker runs the job's optimizer and has no LayerBinding::state: "
         "if its optimizer keeps any ("
      << DescribeOptimizer(options.optimizer)
      << "), a worker that joins later begins with other state, and the "
         "replicas differ from then on";
}

void SkipNotes::Log(int64_t step, const std::string& layer,
                    const std::string& reason) {
  std::optional<absl::Duration> lasts;
  {
    MutexLock lock(&mu_);
    lasts = repeats_.Note(layer, SteadyNow());
  }
  if (!lasts.has_value()) return;
  NEREUS_LOG(Warning, {LogEvent::kSkippedStep, step, layer})
      << reason << ": all workers skip the step" << LastsText(*lasts);
}

}  // namespace nereus
