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

// Progress of values that are still being written into a buffer, for example by
// a copy from a GPU. With an arrival, a gradient can be pushed before it is in
// host memory. A reader that does not wait for the arrival would send bytes of
// the previous step. Thread-safe. All buffers of the memory share the arrival
// (Buffer::Borrow).
class Arrival {
 public:
  virtual ~Arrival() = default;

  // True if the first `bytes` bytes are written. Does not wait.
  virtual bool IsThere(int64_t bytes) = 0;

  // Waits until the first `bytes` bytes are written. Blocks the calling thread,
  // for a short time. Errors: the reason why these bytes will never be written.
  virtual absl::Status Await(int64_t bytes) = 0;

  // Searches all values where they come from, for example on a GPU, and returns
  // the first that is NaN or infinite. Waits for the search; reads no host
  // memory. Errors: kUnimplemented, the caller must search the values in host
  // memory; other errors, the search has failed.
  virtual absl::StatusOr<NotFinite> FindNotFinite() {
    return UnimplementedError("these values are looked at where they are");
  }

  // Waits until no device reads these values from host memory. Called before
  // the host overwrites them. The wait is short.
  virtual void AwaitUnread() {}

  // Returns these values rounded to bfloat16, in a buffer with its own arrival;
  // null if they are not copied in this form. The float32 values are then
  // written only if a reader awaits them.
  virtual const Buffer* bfloat16() const { return nullptr; }
};

}  // namespace nereus
