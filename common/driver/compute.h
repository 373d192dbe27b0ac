#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "common/base/status.h"
#include "common/driver/arithmetic.h"
#include "common/protocol/outbox.h"

namespace nereus {

// The arithmetic of a worker's driver that a device, such as a GPU, may do
// instead of the CPU: it multiplies factors, splits gradients into the values
// to send and the residual (--sparsity), and runs the optimizer. This class
// does all of it on the CPU; a class for a device overrides what the device
// does. The driving thread (MachineDriver) makes all calls but name(). A slow
// call delays all layers. If a call returns an error, the job ends with the
// text of this error as its reason. A BadValue with an index below 0: no value
// is bad, or the device looks later.
class Compute {
 public:
  virtual ~Compute() = default;

  // Returns the instance for the CPU, which has no state.
  static Compute* OnCpu() {
    static Compute* const cpu = new Compute();
    return cpu;
  }

  // Returns a text that names everything on which the bits of a product of
  // factors depend, such as the model of the GPU and the version of cuBLAS. The
  // worker sends it to the coordinator (JoinRequest::products), which refuses a
  // worker whose text differs from that of the workers that have joined: their
  // replicas would differ. "": the CPU makes the products, in host memory.
  virtual std::string name() const { return ""; }

  // Computes FactorGradient (common/compute/factor_gradient.h), or queues the
  // computation. After the call, the driver may overwrite the factors. The
  // gradient goes to its host memory or, on a device, to the device memory that
  // the training program gave to PushFactors, where Update, or the program's
  // own optimizer, reads it. `moved`: see ExecuteArithmetic.
  virtual absl::StatusOr<BadValue> Multiply(
      const MultiplyFactors& factors, absl::FunctionRef<void(int64_t)> moved) {
    return ExecuteArithmetic(factors, moved);
  }

  // True if the residual of `layer` is on a device. Then Split waits itself
  // until the gradient has arrived.
  virtual bool SplitsOnDevice(int /*layer*/) const { return false; }

  // Splits a gradient (SplitGradient), or queues the split. The values to send
  // can arrive in host memory after the call (Arrival), and so can the norms
  // (AwaitNorms).
  virtual absl::Status Split(const SplitGradient& split) {
    ExecuteArithmetic(split);
    return absl::OkStatus();
  }

  // Waits for all queued splits if `values` overlap the norms of one of these
  // splits; otherwise returns at once. So one wait covers the splits of all
  // layers of a step. The driver calls this each time before it reads values,
  // because it does not know which values are norms.
  virtual absl::Status AwaitNorms(const Buffer& /*values*/) {
    return absl::OkStatus();
  }

  // Makes a step of the optimizer (UpdateParameters), or queues the step. The
  // result has the bits that the CPU would compute. On a device, the gradient
  // is the result of Multiply there, or it is in host memory that does not
  // change until the step is made.
  virtual absl::StatusOr<BadValue> Update(const UpdateParameters& update) {
    update.updated.AwaitUnread();
    return ExecuteArithmetic(update);
  }

  // Queues a copy of sampled parameters of `layer`, of which a device has newer
  // values than the host. Returns the values, one run after the other; they can
  // arrive after the call (Arrival). A copy that later updates by the device or
  // by the training program cannot overtake. Errors: the values cannot be
  // copied now; the driver then goes without this sample.
  virtual absl::StatusOr<Buffer> Sample(int /*layer*/,
                                        const SampledElements& /*sampled*/) {
    return UnimplementedError("the CPU has no newer parameters than the host");
  }
};

}  // namespace nereus
