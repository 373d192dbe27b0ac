#pragma once

#include <string>

#include "common/base/status.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Device, such as a GPU, that computes for a worker instead of the CPU. It
// multiplies factors. For layers for which Splits is true, it splits the
// gradient into the values to send and the residual (--sparsity). For layers
// for which Updates is true, it runs the optimizer. The driving thread
// (MachineDriver) makes all calls but name(). A slow call delays all layers. If
// a call returns an error, the job ends with the text of this error as its
// reason.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Returns a text that names everything on which the bits of a product of
  // factors depend, such as the model of the GPU and the version of cuBLAS. The
  // worker sends it to the coordinator (JoinRequest::products), which refuses a
  // worker whose text differs from that of the workers that have joined: their
  // replicas would differ. Never "cpu", which names products of the CPU.
  virtual std::string name() const = 0;

  // Computes FactorGradient (common/compute/factor_gradient.h), or queues the
  // computation. After the call, the driver may overwrite the factors. The
  // gradient goes to the device memory that the training program gave to
  // PushFactors. Update, or the program's own optimizer, reads it there.
  virtual absl::Status Multiply(const MultiplyFactors& factors) = 0;

  // True if the driver must call Split for gradients of `layer`; false if the
  // CPU splits them. With true, the layer's residual is on the device.
  virtual bool Splits(int /*layer*/) const { return false; }

  // Splits a gradient (SplitGradient), or queues the split. The values to send
  // can arrive in host memory after the call (Arrival), and so can the norms
  // (AwaitNorms). REQUIRES: Splits(split.layer).
  virtual absl::Status Split(const SplitGradient& /*split*/) {
    return UnimplementedError(name() + " splits no gradients");
  }

  // Waits for all queued splits if `values` overlap the norms of one of these
  // splits; otherwise returns at once. So one wait covers the splits of all
  // layers of a step. The driver calls this each time before it reads values,
  // because it does not know which values are norms.
  virtual absl::Status AwaitNorms(const Buffer& /*values*/) {
    return absl::OkStatus();
  }

  // True if the driver must call Update for the optimizer's steps of `layer`;
  // false if the CPU makes them. With true, the device has the newest
  // parameters and the optimizer's state.
  virtual bool Updates(int /*layer*/) const { return false; }

  // Makes a step of the optimizer (UpdateParameters), or queues the step. The
  // result has the bits that the CPU would compute. The gradient is the result
  // of Multiply on the device, or it is in host memory that does not change
  // until the step is made. REQUIRES: Updates(update.layer).
  virtual absl::Status Update(const UpdateParameters& /*update*/) {
    return UnimplementedError(name() + " updates no parameters");
  }

  // Queues a copy of sampled parameters of `layer`, of which the device has
  // newer values than the host. Returns the values, one run after the other;
  // they can arrive after the call (Arrival). A copy that later updates by the
  // device or by the training program cannot overtake. Errors: the values
  // cannot be copied now; the driver then goes without this sample.
  virtual absl::StatusOr<Buffer> Sample(int /*layer*/,
                                        const SampledElements& /*sampled*/) {
    return UnimplementedError(name() + " samples no parameters");
  }
};

}  // namespace nereus
