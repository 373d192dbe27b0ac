#pragma once

#include <cstdint>

namespace nereus {

// Part of an array of float32: values [begin, end).
struct ValueRange {
  int64_t begin = 0;  // Index of the first value.
  int64_t end = 0;    // Index after the last value.
};

}  // namespace nereus
