#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 4, no worker waits for the dead: a step ends within a lease and the time
// of a recovery, counted from the last step or the last fault. While a member
// is missing that the job needs, only the patience of the test limits the wait.
//
// This law is about liveness: it finds a job in which all workers wait. It
// makes no breach but ends the run by CheckTime, because a test may undo its
// fault and continue the run.
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
  const absl::Duration wait_max_;  // Longest time of a step with a recovery.
  absl::Duration patience_ = absl::Seconds(30);
  absl::Time progress_at_ = absl::UnixEpoch();   // Last progress.
  absl::Time disturbed_at_ = absl::UnixEpoch();  // Last Disturbed.
};

}  // namespace nereus
