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
    // memmove, because with `packed` equal to `values` a piece may overlap the
    // place to which it is copied. The copy overwrites no later piece: `chosen`
    // ascends, so later pieces lie behind that place.
    std::memmove(packed, values + begin,
                 static_cast<size_t>(length) * sizeof(float));
    packed += length;
  }
}

}  // namespace nereus
