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

// Gradient in a GPU's memory, as the host client waits for it. The GPU may
// search it for NaNs and, in a sparse job, split it; only the part that travels
// is then copied to the host. Where the plan sends bfloat16, the host gets the
// rounded halves. It gets the float32 values only if a new plan needs them
// after all. Thread-safe.
class DeviceGradient final : public Arrival {
 public:
  // `what`: name for messages. `values`: float32 in device memory, computed by
  // now on stager->out(); as many as `staged`, pinned memory, has room for.
  // `look` searches for NaNs; null: the host does. `stager` and `look` must
  // outlive this. The caller must not change `values` meanwhile.
  DeviceGradient(std::string what, Stager* stager, DeviceLook* look,
                 float* values, Buffer staged)
      : what_(std::move(what)),
        stager_(stager),
        look_(look),
        values_(values),
        staged_(std::move(staged)) {}

  float* values() const { return values_; }
  // Memory on the host where the values that travel arrive, from its begin on.
  const Buffer& staged() const { return staged_; }

  // Sets the copy that brings values to staged().
  void SetCopy(std::shared_ptr<Stager::Outgoing> copy)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    copy_ = std::move(copy);
  }

  // Sets the values as bfloat16. REQUIRES: no other thread has this yet.
  void SetHalves(Buffer halves) { halves_ = std::move(halves); }

  // IsThere and Await concern the float32 values. REQUIRES: `bytes` is at most
  // the number of bytes that are sent.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<NotFinite> FindNotFinite() override;
  const Buffer* bfloat16() const override {
    return halves_.bytes() > 0 ? &halves_ : nullptr;
  }

 private:
  // Name for messages.
  const std::string what_;
  // Not owned, like the next one.
  Stager* const stager_;
  DeviceLook* const look_;
  // Device memory of the caller.
  float* const values_;
  // See staged().
  const Buffer staged_;
  Buffer halves_;  // Pinned memory; empty: the values are not sent so.

  // Held while the copy is queued: two threads may call Await at once.
  Mutex mu_;
  // Copy of the float32 values. Null: none was made.
  std::shared_ptr<Stager::Outgoing> copy_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
