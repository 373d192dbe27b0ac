#ifndef NEREUS_COMMON_TENSOR_ARRIVAL_H_
#define NEREUS_COMMON_TENSOR_ARRIVAL_H_

#include <cstdint>

#include "absl/status/status.h"

namespace nereus {

class Buffer;

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

  // Waits, for a short time too, until whoever has been copying these values
  // elsewhere is done: they are about to be overwritten.
  virtual void AwaitUnread() {}

  // The same values as bfloat16, for float32 that need not be there at all if
  // they are only sent in this form; null: there are none.
  virtual const Buffer* bfloat16() const { return nullptr; }
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TENSOR_ARRIVAL_H_
