#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "common/network/simulated_network.h"

namespace nereus {

// A partition of the network in two: some processes on the far side, all others
// and the coordinator on the near one. Nothing gets across until Heal; then all
// of it does, in order. Connections and sessions do not break by themselves, as
// little as TCP's do.
class SimulatedPartition {
 public:
  using Task = std::function<void()>;

  // Moves these processes to the far side. REQUIRES: no partition lasts.
  void Divide(std::set<ProcessId> far) { far_ = std::move(far); }

  // Ends the partition, and runs the tasks that it has held up.
  void Heal() {
    far_.clear();
    for (const Task& task : std::exchange(held_up_, {})) task();
  }

  // True if nothing gets from one of the two to the other.
  bool Separates(ProcessId a, ProcessId b) const {
    return is_far(a) != is_far(b);
  }

  // Runs `task` now, or in Heal if the two are separated.
  void WhenTogether(ProcessId a, ProcessId b, Task task) {
    if (Separates(a, b)) {
      held_up_.push_back(std::move(task));
    } else {
      task();
    }
  }

  bool is_far(ProcessId process) const { return far_.contains(process); }
  const std::set<ProcessId>& far() const { return far_; }

 private:
  std::set<ProcessId> far_;    // Processes on the far side.
  std::vector<Task> held_up_;  // Tasks that wait for Heal.
};

}  // namespace nereus
