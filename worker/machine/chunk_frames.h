#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"

namespace nereus {

// Numbers the frames in which one layer's values travel between workers and
// servers: first the frames of chunk 0, then those of chunk 1, and so on. In a
// sparse job each chunk has one extra frame, its last one. This frame has no
// values. A worker or server sends it to say that no block of the chunk travels
// in the round.
//
// Constant, so any thread may read it. A layer is cut into the same frames in
// all epochs of a job.
class ChunkFrames {
 public:
  // `layer`: index in job.layers.
  ChunkFrames(const Job& job, int layer);

  // Number of frames of the layer.
  int64_t count() const { return count_; }
  // Number of frames of a chunk.
  int64_t CountOf(const Chunk& chunk) const {
    return GridOf(chunk).Count() + (is_sparse_ ? 1 : 0);
  }
  // Number of the chunk's first frame among the frames of the layer.
  int64_t FirstOf(const Chunk& chunk) const { return first_[chunk.index]; }
  // Frames of the chunk that have values: all but the extra frame.
  const FrameGrid& GridOf(const Chunk& chunk) const {
    return grids_[chunk.index];
  }

  // Returns the index, within the chunk, of the frame that `header` announces.
  // Errors: kInvalidArgument, the chunk has no such frame.
  absl::StatusOr<int64_t> Find(const Chunk& chunk,
                               const FrameHeader& header) const;

 private:
  bool is_sparse_;                // True if chunks have the extra frame.
  std::vector<FrameGrid> grids_;  // Grid of each chunk.
  std::vector<int64_t> first_;    // First frame of each chunk.
  int64_t count_ = 0;             // See count().
};

}  // namespace nereus
