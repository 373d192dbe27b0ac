#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/protocol/outbox.h"

namespace nereus {

// What multiplies the factors of all workers in the CPU's place.
class FactorMultiplier {
 public:
  virtual ~FactorMultiplier() = default;

  // What the bits of its products depend on: a worker with another name would
  // have another replica. Not "cpu".
  virtual std::string name() const = 0;

  // FactorGradient (common/compute/factor_gradient.h). The factors may be
  // overwritten when it returns; the gradient is in whatever memory was given
  // to PushFactors, or the host's, and then there. Not called by two threads at
  // once.
  virtual absl::Status Multiply(const MultiplyFactors& factors) = 0;
};

}  // namespace nereus
