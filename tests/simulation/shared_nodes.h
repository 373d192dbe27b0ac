#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/network/event_queue.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_device.h"

namespace nereus {

// Nodes with one device each, on which several simulated jobs run at the same
// time. Worker n of each job is on node n, modulo the number of nodes.
//
// Checks the laws of turns, beside the laws of each job:
//   - one client has the turn of a device at a time;
//   - a worker that waits for other members has no turn.
class SharedNodes {
 public:
  SharedNodes(int nodes, uint64_t seed);

  // Adds a job.
  SimulatedCluster& AddJob(SimulatedClusterOptions options, Workload workload);

  // Runs until every job has done `steps` steps. Errors: those of
  // SimulatedCluster::RunSteps; kInternal, a law of turns is broken.
  absl::Status RunSteps(int64_t steps);
  void AdvanceBy(absl::Duration time);

  SimulatedCluster& job(int index) { return *jobs_[index]; }
  SimulatedDevice& device(int node) { return *devices_[node]; }
  int nodes() const { return static_cast<int>(devices_.size()); }
  absl::Time now() const { return clock_.now(); }

 private:
  // Runs the next event of all jobs. Errors: a law is broken.
  absl::Status Advance();

  EventQueue clock_;
  std::vector<std::unique_ptr<SimulatedDevice>> devices_;
  std::vector<std::unique_ptr<SimulatedCluster>> jobs_;
};

}  // namespace nereus
