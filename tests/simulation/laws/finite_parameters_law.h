#pragma once

#include "absl/strings/string_view.h"
#include "tests/simulation/laws/law.h"

namespace nereus {

// No NaN and no infinity gets into the parameters, whatever gradients have.
class FiniteParametersLaw final : public Law {
 public:
  absl::string_view name() const override { return "parameters are finite"; }
  void Observe(const ClusterEvent& event) override;
};

}  // namespace nereus
