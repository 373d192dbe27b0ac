#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nereus {

class Buffer;

// A float32 that is NaN or infinite.
struct NotFinite {
  int64_t index = -1;  // Below 0: there is none.
  float value = 0.0f;
};

// Bytes that are still being written, from the first to the last: by a copy
// from a device, say. Thread-safe.
class Arrival {
 public:
  virtual ~Arrival() = default;

  // Whether the first `bytes` are there.
  virtual bool IsThere(int64_t bytes) = 0;

  // Waits until they are, which is soon: whoever calls it does nothing else
  // meanwhile. Errors: they never will be, and why.
  virtual absl::Status Await(int64_t bytes) = 0;

  // The first of all float32 that is NaN or infinite, for one who need not read
  // them otherwise; waits until they are made. kUnimplemented: he who wants to
  // know reads them. Other errors: they never will be there, and why.
  virtual absl::StatusOr<NotFinite> FindNotFinite() {
    return absl::UnimplementedError(
        "these values are looked at where they are");
  }

  // Waits, for a short time too, until whoever has been copying these values
  // elsewhere is done: they are about to be overwritten.
  virtual void AwaitUnread() {}

  // The same values as bfloat16, for float32 that need not be there at all if
  // they are only sent in this form; null: there are none.
  virtual const Buffer* bfloat16() const { return nullptr; }
};

}  // namespace nereus
