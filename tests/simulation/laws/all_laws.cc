#include "tests/simulation/laws/all_laws.h"

#include <memory>

#include "common/compute/optimizer.h"
#include "tests/simulation/laws/backup_law.h"
#include "tests/simulation/laws/bounded_memory_law.h"
#include "tests/simulation/laws/bounded_wait_law.h"
#include "tests/simulation/laws/checkpoint_law.h"
#include "tests/simulation/laws/counted_once_law.h"
#include "tests/simulation/laws/equal_replicas_law.h"
#include "tests/simulation/laws/finite_parameters_law.h"
#include "tests/simulation/laws/gathering_law.h"
#include "tests/simulation/laws/lineup_law.h"
#include "tests/simulation/laws/refusals_law.h"
#include "tests/simulation/laws/skipped_steps_law.h"
#include "tests/simulation/laws/unchanged_parameters_law.h"

namespace nereus {

void AddAllLaws(const SimulatedClusterOptions& options,
                const Workload& workload, LawChecker* laws) {
  // The planner may choose bf16 for a layer where it chooses wire types.
  const WireType wire =
      options.rules.choose_wire ? WireType::kBfloat16 : options.rules.wire;
  laws->Add(std::make_unique<RefusalsLaw>());
  if (!options.corrupts) {
    laws->Add(std::make_unique<FiniteParametersLaw>());
    laws->Add(std::make_unique<UnchangedParametersLaw>(
        /*is_rounded=*/wire != WireType::kFloat32));
    laws->Add(std::make_unique<SkippedStepsLaw>());
    laws->Add(std::make_unique<EqualReplicasLaw>());
    laws->Add(std::make_unique<BackupLaw>());
    laws->Add(std::make_unique<CheckpointLaw>(
        workload.layers, wire,
        OptimizerStateCount(options.job.optimizer.rule)));
  }
  laws->Add(std::make_unique<BoundedMemoryLaw>());
  laws->Add(std::make_unique<LineupLaw>());
  laws->Add(std::make_unique<GatheringLaw>());
  laws->Add(std::make_unique<BoundedWaitLaw>(options.lease));
  if (workload.is_signed) {
    laws->Add(std::make_unique<CountedOnceLaw>(workload.layers, options.job));
  }
}

}  // namespace nereus
