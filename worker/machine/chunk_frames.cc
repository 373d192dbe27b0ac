#include "worker/machine/chunk_frames.h"

namespace nereus {

ChunkFrames::ChunkFrames(const Job& job, int layer)
    : is_sparse_(job.IsSparse(layer)) {
  for (const Chunk& chunk : job.placement.layer_chunks(layer)) {
    grids_.push_back(job.GridOf(chunk));
    first_.push_back(count_);
    count_ += CountOf(chunk);
  }
}

absl::StatusOr<int64_t> ChunkFrames::Find(const Chunk& chunk,
                                          const FrameHeader& header) const {
  const bool is_empty = is_sparse_ && header.payload_bytes == 0 &&
                        header.offset == 0 && header.part == kValuesPart;
  if (is_empty) return CountOf(chunk) - 1;
  return FrameIndex(header, GridOf(chunk));
}

}  // namespace nereus
