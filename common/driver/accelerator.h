#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/outbox.h"

namespace nereus {

// A device, such as a GPU, that computes for a worker instead of the CPU. It
// multiplies factors; for the layers that it has in its memory, it splits the
// gradients and makes the optimizer's steps. Called by the driver thread, which
// waits for the calls: a call that takes long holds up all layers. An error
// ends the job, with its text.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Returns the name of everything that the bits of products depend on, such as
  // the model of the GPU and the version of its library. Workers with different
  // names are refused: their replicas would differ. Not "cpu".
  virtual std::string name() const = 0;

  // Computes FactorGradient (common/compute/factor_gradient.h). On return the
  // factors may be overwritten. The gradient is in the memory that was given to
  // PushFactors; Update reads it there.
  virtual absl::Status Multiply(const MultiplyFactors& factors) = 0;

  // True if gradients of `layer` are split by Split, not by the CPU. Then the
  // layer's residual is on the device, too.
  virtual bool Splits(int /*layer*/) const { return false; }

  // Splits a gradient (SplitGradient). Blocks to send, and norms, may arrive
  // later (AwaitNorms). REQUIRES: Splits(split.layer).
  virtual absl::Status Split(const SplitGradient& /*split*/) {
    return UnimplementedError(name() + " splits no gradients");
  }

  // Waits until `values` are there, if they are the norms of splits. Called for
  // all values that are read. So the splits of all layers of a step are awaited
  // together.
  virtual absl::Status AwaitNorms(const Buffer& /*values*/) {
    return absl::OkStatus();
  }

  // True if steps of the job's optimizer for `layer`, if workers make them, are
  // made by Update, not by the CPU. Then the device has the newest parameters
  // and the optimizer's state.
  virtual bool Updates(int /*layer*/) const { return false; }

  // Makes a step (UpdateParameters), with the bits of the CPU. The gradient is
  // that of Multiply, or host memory that is kept until the step is made.
  // Returns before it is made. REQUIRES: Updates(update.layer).
  virtual absl::Status Update(const UpdateParameters& /*update*/) {
    return UnimplementedError(name() + " updates no parameters");
  }
};

}  // namespace nereus
