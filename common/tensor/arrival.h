#ifndef NEREUS_COMMON_TENSOR_ARRIVAL_H_
#define NEREUS_COMMON_TENSOR_ARRIVAL_H_

#include <cstdint>

#include "absl/status/status.h"

namespace nereus {

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
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TENSOR_ARRIVAL_H_
