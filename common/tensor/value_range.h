#pragma once

#include <cstdint>

namespace nereus {

// A part of an array of float32: values [begin, end).
struct ValueRange {
  int64_t begin = 0;
  int64_t end = 0;
};

}  // namespace nereus
