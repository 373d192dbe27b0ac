#pragma once

#include <cstdint>

#include "common/tensor/buffer.h"

namespace nereus {

// The values of elements [offset, offset + length) of a layer, as they go into
// a checkpoint and come out of it. Float32, host memory, by reference.
struct ChunkValues {
  int32_t layer = 0;   // In forward order.
  int64_t offset = 0;  // Elements from the layer's begin.
  int64_t length = 0;  // Elements, >= 1.

  // {length}
  Buffer parameters;
  // {state arrays, length}: OptimizerStateCount arrays, one after the other; or
  // empty, where the state is not kept.
  Buffer state;
};

}  // namespace nereus
