#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// Answers how far the job is: whether the workers have done the steps that a
// test wants, whether they cannot for want of members, and what they wait for.
// Looks only, and changes nothing.
class JobProgress {
 public:
  // No pointer is owned; all must outlive this.
  JobProgress(const SimulatedWorld* world, const SimulatedPartition* partition,
              const SimulatedCoordinator* coordinator)
      : world_(world), partition_(partition), coordinator_(coordinator) {}

  // True if every live worker has done the wanted steps; if no worker lives:
  // true if the job is finished.
  bool HasDoneAll() const;

  // True if it is right that no step ends now: there is no coordinator, too few
  // workers, or a shard that no present server holds.
  bool MustWait() const;

  // Returns what each worker and the coordinator wait for, for messages.
  std::string DescribeWaits() const;

 private:
  // True if the process lives, runs, and is on the coordinator's side.
  bool IsPresent(ProcessId process) const;
  // True if server `server` is present and has the values of its shards. A
  // server that has just come has none.
  bool HasValues(int server) const;
  // True if a shard is held by no present server, so that the job stands still.
  bool LacksShard() const;

  const SimulatedWorld* const world_;
  const SimulatedPartition* const partition_;
  const SimulatedCoordinator* const coordinator_;
};

}  // namespace nereus
