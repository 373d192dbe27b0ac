#pragma once

#include <cstdint>

#include "common/compute/block_pieces.h"

namespace nereus {

// Coarse-grained sparse communication: Sun et al., "GradientFlow", section 3.3.
// Of the blocks of a model's gradient only some travel in a round, the same on
// all workers, and known before its backward. The rest is held back.
//
// The choice is one value per block, of the round that comes:
//   above 0  the block travels, as it did last so many rounds before;
//   else     it is held back, as it was in minus so many rounds before.
// All travel in the first round, for kFirstChoice.

inline constexpr float kFirstChoice = 1.0f;
// Beyond it nobody counts.
inline constexpr float kChoiceMax = 1 << 20;

inline bool Travels(float choice) { return choice > 0; }
// It was held back in the round before.
inline bool Resumes(float choice) { return choice > kFirstChoice; }

// The choice after the one `before`: the `count` blocks of the largest `norms`
// travel, of equal ones the first; a norm that is NaN is the largest.
// `after` may be `before`. REQUIRES: 0 <= count <= blocks.
void ChooseBlocks(int64_t count, int64_t blocks, const float* norms,
                  const float* before, float* after);

// The sum of the absolute values.
float SumOfAbsolutes(int64_t length, const float* values);

// Holds a gradient back so that it comes with the weight that sgd with this
// momentum would have given it (Lin et al., "Deep gradient compression", ICLR
// 2018, section 3.1):
//   velocity = momentum * velocity + gradient + weight_decay * parameters
//   held += velocity
// `first`: nothing is held, whatever `velocity` and `held` have. Returns the
// sum of the absolute values of `held`.
float HoldBack(float momentum, float weight_decay, bool first, int64_t length,
               const float* gradient, const float* parameters, float* velocity,
               float* held);

// The gradient of the round in which what is held travels:
//   gradient += momentum * velocity, gradient += held
// The update adds the decay.
void ReleaseHeld(float momentum, int64_t length, const float* velocity,
                 const float* held, float* gradient);

// What a round makes of a layer's gradient, {pieces.values}, piece by piece:
// ReleaseHeld, HoldBack, or nothing. Adds to norms[k] what piece k weighs in
// the choice for the next round: the sum of the absolute values of its gradient
// as it was, if it travels, or of what is held of it.
//
//   uses, norms     {pieces.Count()}
//   velocity, held  {pieces.values}; not read or written where all travel
void SplitPieces(const BlockPieces& pieces, float momentum, float weight_decay,
                 const PieceUse* uses, const float* parameters, float* gradient,
                 float* velocity, float* held, float* norms);

}  // namespace nereus
