#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/device/stager.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// A gradient that leaves a GPU as bfloat16, half as many bytes; and as float32
// if somebody waits for them, which nobody does while the plan stays as it is.
// Thread-safe.
class NarrowGradient final : public Arrival {
 public:
  // Rounds float32 at `source`, as many as `values` has room for, to `rounded`
  // and copies that to `halves`, in order with what is queued on the stager's
  // out(). The first two are device memory, the others pinned; `source` must
  // stay as it is until this is gone, `rounded` until all halves are there.
  // Errors: of Stager::CopyOut.
  static absl::StatusOr<std::shared_ptr<NarrowGradient>> CopyOut(
      Stager* stager, absl::string_view what, const float* source,
      uint16_t* rounded, Buffer values, const Buffer& halves);

  // Of the float32.
  bool IsThere(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Await(int64_t bytes) override ABSL_LOCKS_EXCLUDED(mu_);

  const Buffer* bfloat16() const override { return &halves_; }

 private:
  NarrowGradient(Stager* stager, absl::string_view what, const float* source,
                 Buffer values)
      : stager_(stager),
        what_(what),
        source_(source),
        values_(std::move(values)) {}

  Stager* const stager_;
  const std::string what_;
  const float* const source_;
  const Buffer values_;
  Buffer halves_;

  Mutex mu_;
  std::shared_ptr<Stager::Outgoing> wide_ ABSL_GUARDED_BY(mu_);  // If any.
};

}  // namespace nereus
