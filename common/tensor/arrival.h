#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace nereus {

class Buffer;

// Result of a search for a float32 that is NaN or infinite.
struct NotFinite {
  int64_t index = -1;  // Index of the value; below 0: none was found.
  float value = 0.0f;  // The value, for messages.
};

// Progress of values that are still being written into a buffer, from the first
// byte to the last, for example by a copy from a GPU. So a gradient can be
// pushed before it is in host memory. A reader that does not wait for the
// arrival would send bytes of the previous step. Thread-safe. One arrival for
// each push; the buffer owns it.
class Arrival {
 public:
  virtual ~Arrival() = default;

  // True if the first `bytes` bytes are written.
  virtual bool IsThere(int64_t bytes) = 0;

  // Waits until the first `bytes` bytes are written. The wait is short: it
  // blocks the calling thread. Errors: the reason why these bytes will never be
  // written.
  virtual absl::Status Await(int64_t bytes) = 0;

  // Returns the first float32 of all that is NaN or infinite. Waits until the
  // values exist on the device; host memory is not read. Errors:
  // kUnimplemented, the caller must search the values itself; other errors, the
  // reason why the values will never exist.
  virtual absl::StatusOr<NotFinite> FindNotFinite() {
    return UnimplementedError("these values are looked at where they are");
  }

  // Waits until the device no longer reads these values from host memory: they
  // are about to be overwritten. The wait is short.
  virtual void AwaitUnread() {}

  // Returns these values as bfloat16, or null. If values are only sent in this
  // form, the float32 need not be written at all.
  virtual const Buffer* bfloat16() const { return nullptr; }
};

}  // namespace nereus
