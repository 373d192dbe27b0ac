#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 4, no worker waits for the dead: while a worker has work and all members
// that it needs are present, a step ends within a lease and a recovery, counted
// from the last step or the last fault.
//
// The law is about liveness: what it finds is a job in which every worker waits
// for another one. The run may go on after that, since a test may undo the
// fault that it ordered.
class BoundedWaitLaw final : public Law {
 public:
  // `lease`: the time after which a silent member counts as dead.
  explicit BoundedWaitLaw(absl::Duration lease);

  // Sets the longest time without any progress, whatever the faults are.
  void set_patience(absl::Duration patience) { patience_ = patience; }

  absl::string_view name() const override {
    return "no worker waits for the dead";
  }
  void Observe(const ClusterEvent& event) override;
  absl::Status CheckTime(absl::Time now) const override;

 private:
  const absl::Duration wait_max_;  // Longest step, with all that a fault costs.
  absl::Duration patience_ = absl::Seconds(30);
  absl::Time progress_at_ = absl::UnixEpoch();   // Last progress.
  absl::Time disturbed_at_ = absl::UnixEpoch();  // Last fault or excuse.
};

}  // namespace nereus
