#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/frame_set.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/machine/sparse_gradient.h"

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

// Puts one layer's values together. These are the results of a round, which the
// shards send (FrameKind::kResult) or a carrier on this host hands on
// (kOutcome), or the first values, which the shards or a donor send. Each frame
// lands in its final place and is counted once. The last frame completes the
// round.
//
// Discards a frame that is repeated or late: if that frame counted, a round
// would be complete although some of its values are missing. Pure bookkeeping;
// one round is expected at a time. The layer's Syncer owns it.
class ResultAssembly {
 public:
  // `layer`: index in job->layers.
  ResultAssembly(JobPtr job, int layer);

  // Expects the frames of `round`. Part 0 lands in `values`, the whole layer in
  // float32. Parts 1, 2, ... land in `state`, which has as many values for each
  // of these parts, or is empty. The frames come from the shards that own the
  // chunks or, if `donor` is set, all from the donor.
  //
  // If the open round is expected again from the same sender, frames that have
  // arrived still count. From another donor all frames are expected again: the
  // first donor may have died after a round that the other workers did again
  // without it.
  //
  // `sparse`: set in a sparse round. Then only the blocks that travel are
  // expected and, for each chunk without a block that travels, one frame
  // without payload.
  void Expect(int64_t round, Buffer values, Buffer state,
              std::optional<PeerId> donor,
              const SparseGradient* sparse = nullptr);

  // Enters the job's next epoch. Frames that have arrived still count.
  void OnEpoch(JobPtr job) { job_ = std::move(job); }

  // Returns where a frame of kind kResult or kOutcome lands. REQUIRES: a frame
  // of kind kOutcome comes from the chunk's carrier on this host. Errors:
  // kInvalidArgument, the frame does not fit the layer, a result comes from the
  // wrong sender, or the frame is of a later round.
  absl::StatusOr<Landing> Place(const FrameHeader& header) const;

  // Counts a frame that Place accepted. Returns true if it was the last frame
  // of the round: then no round is open, and this object drops its references
  // to the memory.
  bool Count(const FrameHeader& header);

  // True if frames of the expected round are missing.
  bool open() const { return arrived_.missing() > 0; }
  // The round that was expected last.
  int64_t round() const { return round_; }
  // True if all frames of the chunk in the round that was expected last have
  // arrived.
  bool Complete(const Chunk& chunk) const;

  // Names the senders of the missing frames: "shard 0 (chunks 1, 4), shard 1
  // (chunk 2)". MissingOf does this for the chunks for which `concerns` returns
  // true.
  std::string Missing() const;
  std::string MissingOf(
      const std::function<bool(const Chunk&)>& concerns) const;

 private:
  // Marks as arrived the frames that a sparse round does not send.
  void LeaveOut(const SparseGradient& sparse);
  // Marks as arrived one frame that the round does not send.
  void LeaveOut(const Chunk& chunk, int part, int64_t frame);
  // Number of a frame in arrived_.
  int64_t IndexOf(const Chunk& chunk, int part, int64_t frame) const;
  absl::Status CheckSender(const Chunk& chunk, const FrameHeader& header) const;

  JobPtr job_;                // The job in the current epoch.
  const int layer_;           // Index in job_->layers.
  const ChunkFrames frames_;  // Frames of one part.

  int64_t round_ = kInitialRound - 1;  // The round that was expected last.
  Buffer values_;                      // Memory of part 0.
  Buffer state_;                       // Memory of parts 1, 2, ...
  int parts_ = 1;                      // Number of parts.
  std::optional<PeerId> donor_;        // Donor; absent: the shards send.
  FrameSet arrived_;  // Frames that have arrived or are not sent.
};

}  // namespace nereus
