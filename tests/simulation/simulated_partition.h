#pragma once

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/network/simulated_network.h"

namespace nereus {

// Partition of the network into two sides. Some processes are on the far side;
// all others and the coordinator are on the near side. No frame and no message
// gets across until Heal, which lets all of them through in order. As with TCP,
// a partition alone breaks no connection and no session.
class SimulatedPartition {
 public:
  using Task = std::function<void()>;

  // Begins a partition with these processes on the far side. REQUIRES: there is
  // no partition.
  void Divide(std::set<ProcessId> far) { far_ = std::move(far); }

  // Ends the partition at `now`, and runs the tasks that it has held up.
  void Heal(absl::Time now) {
    healed_at_ = now;
    far_.clear();
    for (const Task& task : std::exchange(held_up_, {})) task();
  }

  // True if the two processes are on different sides.
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
  // Time of the last Heal.
  absl::Time healed_at() const { return healed_at_; }

 private:
  std::set<ProcessId> far_;                      // Processes on the far side.
  std::vector<Task> held_up_;                    // Tasks that wait for Heal.
  absl::Time healed_at_ = absl::InfinitePast();  // See healed_at().
};

}  // namespace nereus
