#ifndef NEREUS_COMMON_COMPUTE_FINITE_H_
#define NEREUS_COMMON_COMPUTE_FINITE_H_

#include <cstddef>
#include <cstdint>

namespace nereus {

// The first of `count` float32 values in host memory that is NaN or infinite;
// -1 if none is. Reads each value once, as fast as memory allows.
int64_t FindNotFinite(const float* values, size_t count);

}  // namespace nereus

#endif  // NEREUS_COMMON_COMPUTE_FINITE_H_
