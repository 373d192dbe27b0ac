#pragma once

#include <cstdint>

#include "common/compute/block_pieces.h"

namespace nereus {

// Coarse-grained sparse communication: Sun et al., "GradientFlow", section 3.3
// (CSC). Only some blocks of a model's gradient travel in a round; the other
// blocks are held back in a residual. The blocks that travel are the same on
// all workers, and known before the backward pass of the round begins. In the
// paper, each worker chooses the blocks from all-reduced norms. Here the server
// that has the block layer chooses them, and workers get the choice as that
// layer's values.
//
// The choice for a round is one value for each block:
//
//   above 0   the block travels; it last travelled this many rounds ago
//   else      the block is held back, and was held back in as many rounds
//             before this one as the value is below 0
//
// All blocks travel in the first round: kFirstChoice.

// Choice of a block that travels now and travelled in the round before.
inline constexpr float kFirstChoice = 1.0f;
// Largest number of rounds of waiting that a choice counts. float32 counts
// exactly up to this number.
inline constexpr float kChoiceMax = 1 << 20;

// True if the block travels.
inline bool Travels(float choice) { return choice > 0; }
// True if the block travels and was held back in the round before.
inline bool Resumes(float choice) { return choice > kFirstChoice; }

// Makes the next choice from the choice `before`: the `count` blocks of the
// largest `norms` travel. Of equal norms the first block wins; a NaN counts as
// infinity. All arrays {blocks}; `after` may be `before`. REQUIRES: 0 <= count
// <= blocks.
void ChooseBlocks(int64_t count, int64_t blocks, const float* norms,
                  const float* before, float* after);

// Returns the sum of the absolute values (L1 norm), in a fixed order.
float SumOfAbsolutes(int64_t length, const float* values);

// Adds a gradient to the residual. The gradient later has the weight that sgd
// with this momentum would have given it (Lin et al., "Deep gradient
// compression", ICLR 2018, section 3.1):
//
//   velocity = momentum * velocity + gradient + weight_decay * parameters
//   held += velocity
//
// `first`: there is no residual yet; the content of `velocity` and `held` is
// ignored. Returns the L1 norm of `held`. All arrays {length}, none overlap.
float HoldBack(float momentum, float weight_decay, bool first, int64_t length,
               const float* gradient, const float* parameters, float* velocity,
               float* held);

// Adds the residual to the gradient of the round in which both travel:
//
//   gradient += momentum * velocity, then gradient += held
//
// The weight decay of this round is added by the update.
void ReleaseHeld(float momentum, int64_t length, const float* velocity,
                 const float* held, float* gradient);

// Splits a layer's gradient, {pieces.values}, piece by piece, into the part
// that travels and the residual: calls ReleaseHeld for kResumes, HoldBack for
// kHeld and kHeldFirst, and neither for kTravels. Adds to norms[k] the weight
// of piece k in the next choice: the L1 norm of its gradient as pushed if it
// travels, else of its residual.
//
//   uses, norms     {pieces.Count()}
//   velocity, held  {pieces.values}; unused if all `uses` are kTravels
void SplitPieces(const BlockPieces& pieces, float momentum, float weight_decay,
                 const PieceUse* uses, const float* parameters, float* gradient,
                 float* velocity, float* held, float* norms);

}  // namespace nereus
