#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/compute/block_pieces.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Choice of the blocks that travel in a round (common/compute/blocks.h), by
// block. Shared by the syncers of all layers.
using BlockChoice = std::shared_ptr<const std::vector<float>>;

// Returns the choice for `round`. `values`: values of the block layer as of the
// round before. If they have a size and no memory, as in `nereusctl simulate`,
// the blocks take turns.
BlockChoice ReadChoice(const Job& job, const Buffer& values, int64_t round);

// Splits one worker's gradient of one layer, in a sparse job, into the blocks
// that travel in a round and the residual, which is added to the gradient of a
// later round (Sun et al., "GradientFlow", section 3.3). Without the residual
// the gradients of blocks that do not travel would be lost.
//
// Pure bookkeeping; the arithmetic is the action SplitGradient. Memory, once
// there is a residual: two arrays of as many values as the layer has, in this
// object, or three where a GPU carries out SplitGradient.
class SparseGradient {
 public:
  // `keeps_residual`: see LayerMemory::keeps_residual.
  SparseGradient(const Job& job, int layer, bool keeps_residual);

  // Begins a round: appends the action that splits `gradient`. The blocks that
  // `choice` names, each with its residual added, become the contribution, in
  // the memory of `gradient`. The other blocks are added to the residual.
  // `parameters`: parameters of the layer. `norms`: one value for each block of
  // the model, from which the servers make the next choice. The action adds the
  // norms of this layer's blocks to it.
  void Begin(const Job& job, BlockChoice choice, Buffer gradient,
             const Buffer& parameters, const Buffer& norms, Outbox& out);

  // Ends the round: `gradient` is the caller's again.
  void End() { gradient_ = Buffer(); }

  // Frames of the whole layer. Each frame is the piece of one block in the
  // layer.
  const FrameGrid& grid() const { return grid_; }
  // The block of a frame, counted over the model.
  int64_t BlockOf(int64_t frame) const { return first_block_ + frame; }
  // True if the block of the frame travels in the round that was begun last.
  bool travels(int64_t frame) const;
  // True if the block of the frame travels, and did not in the round before.
  bool resumes(int64_t frame) const;
  // Index of the frame that has value `offset` of the layer.
  int64_t FrameAt(int64_t offset) const { return grid_.IndexOf(offset); }

  // Returns, from the contribution to the open round, the layer's values
  // [offset, offset + length). REQUIRES: they are in one block, which travels.
  Buffer Contribution(int64_t offset, int64_t length) const;

  // Residual of a frame, for tests; empty if there is none.
  Buffer held(int64_t frame) const;

 private:
  float ChoiceOf(int64_t frame) const;
  // Decides for each frame if it travels, and sets its place in the
  // contribution. Returns the uses of the frames.
  std::vector<PieceUse> PlaceBlocks();

  const int layer_;            // Index in the job's layers.
  const FrameGrid grid_;       // See grid().
  const BlockPieces pieces_;   // The frames, as SplitGradient wants them.
  const int64_t first_block_;  // The block of frame 0.
  const bool keeps_residual_;  // See the constructor.
  BlockChoice choice_;         // Choice of the round that was begun last.
  Buffer gradient_;            // The contribution to the open round.
  Buffer velocity_;            // Momentum of the residual.
  Buffer held_;                // The residual.
  std::vector<bool> holds_;    // True for each frame that has a residual.
  // Index, in the contribution, of the first value of each frame that travels.
  std::vector<int64_t> place_;
};

}  // namespace nereus
