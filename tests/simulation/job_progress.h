#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Progress of a simulated job: says whether the workers have done the wanted
// steps, whether missing members prevent that, and what the workers wait for.
// Changes no state.
class JobProgress {
 public:
  // No pointer is owned; all must outlive this.
  JobProgress(const SimulatedWorld* world, const SimulatedPartition* partition,
              const SimulatedCoordinator* coordinator)
      : world_(world), partition_(partition), coordinator_(coordinator) {}

  // True if every live worker has done the wanted steps. Without live workers,
  // true if the job is finished.
  bool HasDoneAll() const;

  // True if the job need not end a step now: the coordinator is dead, the job
  // has not begun, a shard is missing, too few workers are present, or the
  // present workers have done the wanted steps.
  bool MustWait() const;

  // Returns a text for messages: what each worker and the coordinator wait for.
  std::string DescribeWaits() const;

 private:
  // True if the process lives, runs, and is on the coordinator's side.
  bool IsPresent(ProcessId process) const;
  // True if server `server` is present and has been admitted. A server without
  // a machine has no values.
  bool HasValues(int server) const;
  // True if no present server has the values of a shard, and another server is
  // missing that is needed to go back to a checkpoint.
  bool LacksShard() const;

  const SimulatedWorld* const world_;
  const SimulatedPartition* const partition_;
  const SimulatedCoordinator* const coordinator_;
};

}  // namespace nereus
