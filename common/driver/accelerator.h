#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Device, such as a GPU, that computes for a worker instead of the CPU. It
// multiplies factors. It also splits the gradients of layers for which Splits
// is true, and makes the optimizer's steps of layers for which Updates is true.
// The driving thread makes all calls but name(). A call that takes long holds
// up all layers. An error ends the job, and its text becomes the reason.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Returns the name of everything that the bits of products depend on, such as
  // the model of the GPU and the version of its library. Workers with different
  // names are refused: their replicas would differ. Never "cpu", which is the
  // name for products of the CPU.
  virtual std::string name() const = 0;

  // Computes FactorGradient (common/compute/factor_gradient.h), or queues it.
  // On return the factors may be overwritten. The gradient goes to the memory
  // that the caller gave to PushFactors. Update, or the caller's optimizer,
  // reads it there.
  virtual absl::Status Multiply(const MultiplyFactors& factors) = 0;

  // True if Split splits the gradients of `layer`, and not the CPU. Then the
  // layer's residual is on the device.
  virtual bool Splits(int /*layer*/) const { return false; }

  // Splits a gradient (SplitGradient), or queues this. The blocks to send may
  // arrive after the call (Arrival). So may the norms (AwaitNorms). REQUIRES:
  // Splits(split.layer).
  virtual absl::Status Split(const SplitGradient& /*split*/) {
    return UnimplementedError(name() + " splits no gradients");
  }

  // Waits for all splits so far, if `values` overlap the norms of one of them;
  // otherwise returns at once. So one wait covers the splits of all layers of a
  // step. The driver calls it for values that it is about to read, because it
  // does not know which of them are norms.
  virtual absl::Status AwaitNorms(const Buffer& /*values*/) {
    return absl::OkStatus();
  }

  // True if Update, and not the CPU, makes the optimizer's steps of `layer` on
  // this worker. Then the device has the newest parameters and the optimizer's
  // state.
  virtual bool Updates(int /*layer*/) const { return false; }

  // Makes a step of the optimizer (UpdateParameters), or queues it. The result
  // has the bits that the CPU would compute. The gradient is that of Multiply,
  // or in host memory that stays unchanged until the step is made. REQUIRES:
  // Updates(update.layer).
  virtual absl::Status Update(const UpdateParameters& /*update*/) {
    return UnimplementedError(name() + " updates no parameters");
  }
};

}  // namespace nereus
