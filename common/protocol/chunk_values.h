#pragma once

#include <cstdint>

#include "common/tensor/buffer.h"

namespace nereus {

// Values of elements [offset, offset + length) of one layer, as they are
// written to a checkpoint and read from it. Float32, host memory. The buffers
// are shared by reference and must not change while a checkpoint is being
// written: the shard writes later updates to other memory.
struct ChunkValues {
  int32_t layer = 0;   // Index of the layer, in forward order.
  int64_t offset = 0;  // First element, counted from the start of the layer.
  int64_t length = 0;  // Number of elements, >= 1.

  Buffer parameters;  // Shape {length}.
  // Optimizer state, shape {state arrays, length}: one array after the other
  // (OptimizerStateCount). Empty if the server keeps no state.
  Buffer state;
};

}  // namespace nereus
