#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Law 5, nothing wrong is silent, and nothing right is refused: a process
// without a place in the job is refused, and told why; no machine refuses a
// frame of another one; every message and every payload arrives as it was sent;
// and the coordinator never ends the process that it lives in.
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
