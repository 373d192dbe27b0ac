#pragma once

#include "absl/status/status.h"
#include "common/protocol/outbox.h"

namespace nereus {

// What splits a layer's gradients in the CPU's place, in a sparse job, and
// keeps what is held back.
class GradientSplitter {
 public:
  virtual ~GradientSplitter() = default;

  // Carries `split` out, its norms at once; what travels of the gradient may
  // arrive later. Soon: whoever calls it does nothing else meanwhile.
  virtual absl::Status Split(const SplitGradient& split) = 0;
};

}  // namespace nereus
