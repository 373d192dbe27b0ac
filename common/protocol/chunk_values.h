#pragma once

#include <cstdint>

#include "common/tensor/buffer.h"

namespace nereus {

// Values of elements [offset, offset + length) of one layer, as servers write
// them to a checkpoint and read them from it. Float32, host memory. The buffers
// are references to the shard's memory. While a thread writes them to a
// checkpoint, they must not change: the shard writes its updates to other
// memory meanwhile.
struct ChunkValues {
  int32_t layer = 0;   // Index of the layer, in forward order.
  int64_t offset = 0;  // First element, counted from the start of the layer.
  int64_t length = 0;  // Number of elements, >= 1.

  Buffer parameters;  // Shape {length}.
  // Optimizer state, shape {number of arrays, length}: one array after the
  // other (Job::state_arrays). Empty if the server has no state of the layer.
  Buffer state;
};

}  // namespace nereus
