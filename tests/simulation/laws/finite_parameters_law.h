#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// No NaN and no infinity gets into the parameters, whatever gradients have.
// With NanPolicy::kSkip the job skips the step, with kFail it ends; a NaN that
// slipped through would spread to all workers within a step.
class FiniteParametersLaw final : public Law {
 public:
  absl::string_view name() const override { return "parameters are finite"; }
  void Observe(const ClusterEvent& event) override;
};

}  // namespace nereus
