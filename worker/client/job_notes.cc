#include "worker/client/job_notes.h"

#include <optional>

#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/protocol/job_spec.h"

namespace nereus {

void LogJoined(const ClientOptions& client, const JobOptions& job,
               bool lacks_state) {
  NEREUS_LOG(Info, {LogEvent::kMemberJoined})
      << "joined job " << client.job << ": "
      << DescribeJobSpec(SpecOf(job), /*told=*/true);
  // Momentum and Adam keep state, and a worker that joins needs a copy of it.
  const bool has_state =
      client.optimizer_has_state &&
      (job.optimizer.rule == UpdateRule::kAdam || job.optimizer.momentum > 0);
  if (job.optimizer_place != OptimizerPlace::kWorker || !lacks_state ||
      !has_state) {
    return;
  }
  NEREUS_LOG(Warning)
      << "this worker runs the job's optimizer and has no LayerBinding::state: "
         "if its optimizer keeps any ("
      << DescribeOptimizer(job.optimizer)
      << "), a worker that joins later begins with other state, and the "
         "replicas differ from then on. If it keeps none, set "
         "ClientOptions::optimizer_has_state to false";
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
