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
};

}  // namespace nereus
