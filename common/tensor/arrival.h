#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace nereus {

class Buffer;

// Result of a search for a float32 that must not be, such as a NaN.
struct BadValue {
  int64_t index = -1;  // Index of the value; below 0: none was found.
  float value = 0.0f;  // The value, for messages.
};

// Progress of values that are still being written to host memory, for example
// by a copy from a GPU. With an arrival, a caller can push a gradient before
// the gradient is in host memory. Code that reads the memory without waiting
// for the arrival would send bytes of the previous step. All buffers that refer
// to the memory share its arrival (Buffer::Borrow). Thread-safe.
class Arrival {
 public:
  virtual ~Arrival() = default;

  // True if the first `bytes` bytes are written. Does not wait.
  virtual bool IsThere(int64_t bytes) = 0;

  // Waits until the first `bytes` bytes are written. Blocks the calling thread,
  // for a short time. Errors: the reason why these bytes will never be written.
  virtual absl::Status Await(int64_t bytes) = 0;

  // Searches all values at their source, for example on a GPU, and returns the
  // first one that is NaN or too large (kTooLarge). Blocks until the search
  // ends. Reads no host memory. Errors: kUnimplemented, the source cannot be
  // searched: search the values in host memory; other errors, the search has
  // failed.
  virtual absl::StatusOr<BadValue> FindTooLarge() {
    return UnimplementedError("these values are looked at where they are");
  }

  // Waits until no device reads values of an earlier round from host memory.
  // The host calls this before it overwrites the values. The wait is short. A
  // device may still copy parts that the host has written in this round.
  virtual void AwaitUnread() {}

  // Returns these values rounded to bfloat16, in a buffer with its own arrival;
  // null if the source gives only float32 values. If the result is not null,
  // the float32 values are written only when a reader calls Await.
  virtual const Buffer* bfloat16() const { return nullptr; }
};

}  // namespace nereus
