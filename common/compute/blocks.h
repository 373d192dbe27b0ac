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
//   n > 0     the block travels; it last travelled n rounds ago
//   -n <= 0   the block is held back, and was held back in each of the n rounds
//             before this one
//
// In the first round all blocks travel, and each value is kFirstChoice.

// Choice of a block that travels now and travelled in the round before.
inline constexpr float kFirstChoice = 1.0f;
// Largest number of rounds in a row that a choice counts while a block is held
// back. float32 has every integer up to this number and beyond.
inline constexpr float kChoiceMax = 1 << 20;

// True if the block travels.
inline bool Travels(float choice) { return choice > 0; }
// True if the block travels and was held back in the round before.
inline bool Resumes(float choice) { return choice > kFirstChoice; }

// Makes the next choice, `after`, from the last one, `before`: the `count`
// blocks with the largest `norms` travel. Of blocks with equal norms, the first
// ones travel; a NaN counts as infinity. All arrays have shape {blocks};
// `after` may be `before`. REQUIRES: 0 <= count <= blocks.
void ChooseBlocks(int64_t count, int64_t blocks, const float* norms,
                  const float* before, float* after);

// Returns the sum of the absolute values (L1 norm), in a fixed order.
float SumOfAbsolutes(int64_t length, const float* values);

// Adds a gradient to the residual. When the residual travels later, the
// parameters change as if sgd with this momentum had applied the gradient in
// its own round (Lin et al., "Deep gradient compression", ICLR 2018, section
// 3.1):
//
//   velocity = momentum * velocity + gradient + weight_decay * parameters
//   held += velocity
//
// `first`: true if there is no residual yet; then `velocity` and `held` count
// as 0, whatever they contain. Returns the L1 norm of the new `held`. All
// arrays have shape {length}; none overlap.
float HoldBack(float momentum, float weight_decay, bool first, int64_t length,
               const float* gradient, const float* parameters, float* velocity,
               float* held);

// Adds the residual to the gradient of the round in which both travel:
//
//   gradient += momentum * velocity, then gradient += held
//
// Adds no weight decay: the optimizer adds it when it applies the round.
void ReleaseHeld(float momentum, int64_t length, const float* velocity,
                 const float* held, float* gradient);

// Splits a layer's gradient, {pieces.values}, piece by piece, into the part
// that travels and the residual: calls ReleaseHeld for kResumes, HoldBack for
// kHeld and kHeldFirst, and neither for kTravels. Adds to norms[k] the weight
// of piece k in the next choice. If the piece travels, this is the L1 norm of
// its gradient as pushed, without the residual. If the piece is held back, this
// is the L1 norm of its new residual.
//
//   uses, norms     {pieces.Count()}
//   velocity, held  {pieces.values}; unused if all `uses` are kTravels
void SplitPieces(const BlockPieces& pieces, float momentum, float weight_decay,
                 const PieceUse* uses, const float* parameters, float* gradient,
                 float* velocity, float* held, float* norms);

}  // namespace nereus
