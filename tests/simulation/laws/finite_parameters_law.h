#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// Parameters never contain a NaN or an infinity, even if gradients do. With
// NanPolicy::kSkip the job skips the step; with kFail the job ends. A NaN in
// the parameters would spread to all workers within a step.
class FiniteParametersLaw final : public Law {
 public:
  absl::string_view name() const override { return "parameters are finite"; }
  void Observe(const ClusterEvent& event) override;
};

}  // namespace nereus
