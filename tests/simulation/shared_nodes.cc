#include "tests/simulation/shared_nodes.h"

#include <algorithm>
#include <utility>

namespace nereus {

SharedNodes::SharedNodes(int nodes, uint64_t seed) {
  for (int node = 0; node < nodes; ++node) {
    devices_.push_back(
        std::make_unique<SimulatedDevice>(&clock_, seed * 1000 + node));
  }
}

SimulatedCluster& SharedNodes::AddJob(SimulatedClusterOptions options,
                                      Workload workload) {
  options.clock = &clock_;
  options.device_of = [this](int n) {
    return devices_[n % devices_.size()].get();
  };
  jobs_.push_back(
      std::make_unique<SimulatedCluster>(options, std::move(workload)));
  return *jobs_.back();
}

absl::Status SharedNodes::Advance() {
  if (!jobs_.front()->RunNext()) {
    return DeadlineExceededError("nothing moves any more");
  }
  for (const auto& job : jobs_) {
    NEREUS_TRY(job->Check());
    for (const auto& process : job->processes().all()) {
      SimulatedWorker* const worker = process->worker.get();
      if (worker == nullptr || !process->alive || !worker->HasTurn()) continue;
      if (!worker->IsWaiting()) continue;
      return InternalError("worker ", worker->rank(), " of job ",
                           SimulatedJobId(job->options()),
                           " waits for other members and has the turn, in "
                           "step ",
                           worker->step());
    }
  }
  for (const auto& device : devices_) {
    if (device->holders_max() <= 1) continue;
    return InternalError(device->holders_max(),
                         " clients have the turn of one device");
  }
  return absl::OkStatus();
}

absl::Status SharedNodes::RunSteps(int64_t steps) {
  for (const auto& job : jobs_) job->WantSteps(steps);
  const auto is_done = [](const auto& job) { return job->HasDoneAll(); };
  while (!std::all_of(jobs_.begin(), jobs_.end(), is_done)) {
    NEREUS_TRY(Advance());
  }
  return absl::OkStatus();
}

void SharedNodes::AdvanceBy(absl::Duration time) {
  const absl::Time end = clock_.now() + time;
  bool is_over = false;
  clock_.At(end, [&is_over] { is_over = true; });
  while (!is_over && Advance().ok()) {
  }
}

}  // namespace nereus
