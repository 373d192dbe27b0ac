#include "common/compute/block_pieces.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace nereus {

void GatherPieces(const BlockPieces& pieces, const int32_t* chosen,
                  int64_t count, const float* values, float* packed) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = pieces.Begin(chosen[i]);
    const int64_t length = pieces.End(chosen[i]) - begin;
    // If `packed` is `values`, a piece may overlap the place that it is copied
    // to. The pieces still to be copied all lie behind that place, as `chosen`
    // ascends.
    std::memmove(packed, values + begin,
                 static_cast<size_t>(length) * sizeof(float));
    packed += length;
  }
}

}  // namespace nereus
