#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"
#include "worker/gpu/device_look.h"

namespace nereus {

// A gradient that is looked through, and maybe split, on the GPU; what is sent
// of it comes to the host. Thread-safe.
class DeviceGradient final : public Arrival {
 public:
  // `what`: for messages. `values`: float32, which are made, as many as
  // `staged`, pinned memory, has room for. `look` must outlive it.
  DeviceGradient(std::string what, DeviceLook* look, float* values,
                 Buffer staged)
      : what_(std::move(what)),
        look_(look),
        values_(values),
        staged_(std::move(staged)) {}

  float* values() const { return values_; }
  const Buffer& staged() const { return staged_; }

  // What is sent of it is on its way to the begin of staged().
  void SetCopy(std::shared_ptr<Stager::Outgoing> copy)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    copy_ = std::move(copy);
  }

  // REQUIRES: no more than is sent of it.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);

  // Where it is.
  absl::StatusOr<NotFinite> FindNotFinite() override;

 private:
  std::shared_ptr<Stager::Outgoing> copy() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return copy_;
  }

  const std::string what_;
  DeviceLook* const look_;
  float* const values_;
  const Buffer staged_;

  mutable Mutex mu_;
  std::shared_ptr<Stager::Outgoing> copy_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
