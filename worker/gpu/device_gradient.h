#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "worker/gpu/device_look.h"

namespace nereus {

// Arrival of a gradient that is copied from a GPU's memory to the host: the
// host client waits through this class before it reads the values. With a
// DeviceLook, the GPU searches the gradient for NaNs. In a sparse job the GPU
// also splits the gradient, and only the values that are sent are copied. If
// the plan sends the layer as bfloat16, the GPU rounds the values, and only
// these halves (two bytes for each value) are copied. The float32 values are
// then copied only if a new plan needs them. Thread-safe.
class DeviceGradient final : public Arrival {
 public:
  // `what`: name for messages. `values`: float32 in device memory, as many as
  // `staged` has room for. The GPU must have computed them before the host
  // client gets this object, and the caller must not change them before
  // they are copied. `staged`: pinned memory. `look`: searches `values` for
  // NaNs; null: the host client searches `staged`. `stager` and `look` must
  // outlive this object.
  DeviceGradient(std::string what, Stager* stager, DeviceLook* look,
                 float* values, Buffer staged)
      : what_(std::move(what)),
        stager_(stager),
        look_(look),
        values_(values),
        staged_(std::move(staged)) {}

  float* values() const { return values_; }
  // Returns the pinned memory to which the values that are sent are copied,
  // from its begin on.
  const Buffer& staged() const { return staged_; }

  // Sets the copy that brings values to staged().
  void SetCopy(std::shared_ptr<Stager::Outgoing> copy)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    copy_ = std::move(copy);
  }

  // Sets the pinned memory of the values rounded to bfloat16. REQUIRES: no
  // other thread has a pointer to this object yet.
  void SetHalves(Buffer halves) { halves_ = std::move(halves); }

  // IsThere and Await concern the float32 values in staged(). REQUIRES: `bytes`
  // is at most the number of bytes that are copied.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<BadValue> FindTooLarge() override;
  const Buffer* bfloat16() const override {
    return halves_.bytes() > 0 ? &halves_ : nullptr;
  }

 private:
  // Name for messages.
  const std::string what_;
  // Not owned, like look_.
  Stager* const stager_;
  DeviceLook* const look_;
  // Device memory of the caller.
  float* const values_;
  // See staged().
  const Buffer staged_;
  Buffer halves_;  // See SetHalves. Empty: the values are sent as float32.

  // Held while Await queues the copy, so that two threads do not queue it
  // twice.
  Mutex mu_;
  // Copy of the float32 values. Null: no copy is queued yet.
  std::shared_ptr<Stager::Outgoing> copy_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
