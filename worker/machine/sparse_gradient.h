#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/compute/block_pieces.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"

namespace nereus {

// The choice of a round (common/compute/blocks.h), by block.
using BlockChoice = std::shared_ptr<const std::vector<float>>;

// Reads it off the values of the job's block layer as of the round before.
// Where those are sizes only, blocks take turns.
BlockChoice ReadChoice(const Job& job, const Buffer& values, int64_t round);

// One worker's gradient of one layer in a sparse job: what of it travels in a
// round, and what is held back until a later one. Pure bookkeeping; arithmetic
// is actions.
//
// Memory, once something has been held: two arrays of as many values as the
// layer has, unless whoever carries out SplitGradient has them.
class SparseGradient {
 public:
  // `holds_here`: they are here.
  SparseGradient(const Job& job, int layer, bool holds_here);

  // Begins a round: what `choice` has travel of `gradient` and of what is held
  // is the contribution, which takes the place of `gradient`; the rest is held.
  // `parameters`: the layer's. Adds to `norms`, a value per block of the model,
  // what the blocks would weigh if they travelled in the next round.
  void Begin(const Job& job, BlockChoice choice, Buffer gradient,
             const Buffer& parameters, const Buffer& norms, Outbox& out);

  // Ends it: `gradient` is free.
  void End() { gradient_ = Buffer(); }

  // Frames of the layer as one, and whether the block of each travels in the
  // round that was begun last.
  const FrameGrid& grid() const { return grid_; }
  int64_t BlockOf(int64_t frame) const { return first_block_ + frame; }
  bool travels(int64_t frame) const;
  // The same; it was held back in the round before.
  bool resumes(int64_t frame) const;
  // By value of the layer.
  int64_t FrameAt(int64_t offset) const { return grid_.IndexOf(offset); }

  // Of the open round: the contribution's values [offset, offset + length), of
  // one block, which travels.
  Buffer Contribution(int64_t offset, int64_t length) const;

  // What is held of a frame; empty: nothing. For tests.
  Buffer held(int64_t frame) const;

 private:
  float ChoiceOf(int64_t frame) const;
  // What becomes of each block in the round, and where it lies in the
  // contribution, if it travels.
  std::vector<PieceUse> PlaceBlocks();

  const int layer_;
  const FrameGrid grid_;
  const BlockPieces pieces_;  // The same.
  const int64_t first_block_;
  const bool holds_here_;
  BlockChoice choice_;
  Buffer gradient_;
  Buffer velocity_;
  Buffer held_;
  std::vector<bool> holds_;     // By frame.
  std::vector<int64_t> place_;  // By frame, in values.
};

}  // namespace nereus
