#ifndef NEREUS_COMMON_TENSOR_VALUE_RANGE_H_
#define NEREUS_COMMON_TENSOR_VALUE_RANGE_H_

#include <cstdint>

namespace nereus {

// A part of an array of float32: values [begin, end).
struct ValueRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_TENSOR_VALUE_RANGE_H_
