#include "worker/client/job_notes.h"

#include "common/base/logging.h"
#include "common/protocol/job_spec.h"

namespace nereus {

void LogJoined(const std::string& job, const JobOptions& options,
               bool keeps_state) {
  NEREUS_LOG(Info) << "joined job " << job << ": "
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

}  // namespace nereus
