#pragma once

#include <cstdint>

namespace nereus {

// Place of the pool's blocks (common/compute/blocks.h) in one layer's values.
// Blocks are cut from the whole pool (all layers of the model, one behind the
// other), so a block can begin in one layer and end in another one. A piece is
// the part of a block that lies in the layer. A value type.
struct BlockPieces {
  int64_t values = 0;  // Number of values of the layer.
  int64_t block = 1;   // Number of values of a whole block, >= 1.
  // Number of values of the first block that lie before the layer; < block.
  int64_t skipped = 0;

  // Returns the number of pieces.
  constexpr int64_t Count() const {
    return values == 0 ? 0 : (skipped + values + block - 1) / block;
  }
  // Return the bounds of piece `index`, as indices of the layer's values: Begin
  // is the first value, End is the value after the last.
  constexpr int64_t Begin(int64_t index) const {
    return index == 0 ? 0 : index * block - skipped;
  }
  constexpr int64_t End(int64_t index) const {
    const int64_t end = (index + 1) * block - skipped;
    return end < values ? end : values;
  }
};

// Treatment of a piece in one round: it travels (is sent), or is held back in
// the residual.
enum class PieceUse : uint8_t {
  kTravels,    // The piece travels, and has no residual.
  kResumes,    // The piece travels, with its residual added.
  kHeld,       // The piece is held back: it is added to its residual.
  kHeldFirst,  // The piece is held back, and there is no residual yet.
};

// True if the piece travels.
constexpr bool Travels(PieceUse use) {
  return use == PieceUse::kTravels || use == PieceUse::kResumes;
}

// Copies `count` pieces of a layer's `values`, one after the other, to
// `packed`, which has room for them. `chosen`: the indices of the pieces to
// copy, ascending. `packed` may be `values`; otherwise the arrays do not
// overlap.
void GatherPieces(const BlockPieces& pieces, const int32_t* chosen,
                  int64_t count, const float* values, float* packed);

}  // namespace nereus
