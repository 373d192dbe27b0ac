#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 5, nothing wrong is silent, and nothing right is refused:
//
//   - The coordinator refuses a process without a place in the job, and tells
//     it why.
//   - No machine refuses a frame of another machine.
//   - Every message and every payload arrives as it was sent.
//   - No process counts as dead for its silence, or for a report that it has
//     not sent, if nothing has kept it from answering for a lease.
//   - The coordinator never drops its own process for a link that breaks again
//     and again.
class RefusalsLaw final : public Law {
 public:
  absl::string_view name() const override {
    return "nothing wrong is silent, and nothing right is refused";
  }
  void Observe(const ClusterEvent& event) override;

 private:
  void OnEnd(const MemberEnded& ended);
  void OnDeath(const CountedAsDead& dead);
};

}  // namespace nereus
