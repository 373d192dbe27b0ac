#pragma once

#include <cstdint>

namespace nereus {

// Where the blocks of common/compute/blocks.h lie in one layer's values. Blocks
// are cut through a model, not a layer: the first one may have begun before it.
struct BlockPieces {
  int64_t values = 0;   // Of the layer.
  int64_t block = 1;    // Values of a whole block, >= 1.
  int64_t skipped = 0;  // Of the first one, before the layer; < block.

  constexpr int64_t Count() const {
    return values == 0 ? 0 : (skipped + values + block - 1) / block;
  }
  // Of piece `index`, in values of the layer.
  constexpr int64_t Begin(int64_t index) const {
    return index == 0 ? 0 : index * block - skipped;
  }
  constexpr int64_t End(int64_t index) const {
    const int64_t end = (index + 1) * block - skipped;
    return end < values ? end : values;
  }
};

// What becomes of a piece in a round.
enum class PieceUse : uint8_t {
  kTravels,    // Nothing is held of it.
  kResumes,    // It travels with what is held of it.
  kHeld,       // It is held, with what is held of it already.
  kHeldFirst,  // It is held, and nothing before.
};

constexpr bool Travels(PieceUse use) {
  return use == PieceUse::kTravels || use == PieceUse::kResumes;
}

// Copies the pieces `chosen`, {count} numbers in ascending order, one after the
// other to `packed`, which has as many values as they have. The arrays do not
// overlap, except that `packed` may begin where `values` begins.
void GatherPieces(const BlockPieces& pieces, const int32_t* chosen,
                  int64_t count, const float* values, float* packed);

}  // namespace nereus
