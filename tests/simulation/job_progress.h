#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Progress of a simulated job: says whether the workers have done the wanted
// steps, whether the job may stand still, and what the workers wait for.
// Changes no state.
class JobProgress {
 public:
  // No pointer is owned; all must outlive this.
  JobProgress(const SimulatedWorld* world, const SimulatedPartition* partition,
              const SimulatedCoordinator* coordinator)
      : world_(world), partition_(partition), coordinator_(coordinator) {}

  // True if every live worker has done the wanted steps, or joins and would
  // begin after them (SimulatedWorker::HasDone). Without live workers, true if
  // the job is finished.
  bool HasDoneAll() const;

  // True if the job is allowed to finish no step now: the coordinator is dead,
  // the job has not begun, a shard is missing, too few workers are present, or
  // the present workers have done the wanted steps.
  bool MayStandStill() const;

  // Returns a text for failure messages: what each worker and the coordinator
  // wait for.
  std::string DescribeWaits() const;

 private:
  // True if the process lives, runs, and is on the coordinator's side of the
  // partition.
  bool IsPresent(ProcessId process) const;
  // True if server `server` is present and has been admitted to the job, so
  // that it has the values of its shards.
  bool IsAdmitted(int server) const;
  // True if no present server has the values of a shard, and not all servers
  // are present. To go back to a checkpoint, the job needs all servers.
  bool LacksShard() const;

  const SimulatedWorld* const world_;
  const SimulatedPartition* const partition_;
  const SimulatedCoordinator* const coordinator_;
};

}  // namespace nereus
