#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/machine/chunk_frames.h"
#include "worker/machine/sparse_gradient.h"

namespace nereus {

// Puts one layer's values together: the results of a round, which the shards
// send (kResult) or a worker of this host hands on (kOutcome), or the first
// values, which the shards or a donor send.
// Each frame lands in its final place and is counted once. The last frame
// completes the round.
//
// A frame that is repeated or late is discarded: if it were counted, a round
// would complete while values of it are missing. Pure bookkeeping; one round is
// expected at a time. The layer's Syncer owns it.
class ResultAssembly {
 public:
  // `layer`: index in job->layers.
  ResultAssembly(JobPtr job, int layer);

  // Expects the frames of `round`: part 0 in `values`, float32 of the whole
  // layer, and parts 1, 2, ... in `state`, which has as many values for each
  // part, or is empty. They come from the shards that own the chunks, or all
  // from `donor`.
  //
  // If the round is expected again from the same sender, frames that have
  // arrived stay. From another donor all frames are expected again: the donor
  // before may have died with a round that the other workers did again without
  // it.
  //
  // `sparse`: set in a sparse round. Only the blocks that travel are expected,
  // and a frame without payload for a chunk without such blocks.
  void Expect(int64_t round, Buffer values, Buffer state,
              std::optional<PeerId> donor,
              const SparseGradient* sparse = nullptr);

  // Enters the job's next epoch. Frames that have arrived stay.
  void OnEpoch(JobPtr job) { job_ = std::move(job); }

  // Returns where a frame lands: kResult, or kOutcome from this worker's
  // carrier, which the caller has checked. Errors: kInvalidArgument, the frame
  // does not fit the layer, a result comes from the wrong sender, or the frame
  // is of a later round.
  absl::StatusOr<Landing> Place(const FrameHeader& header) const;

  // Counts a frame that Place accepted. Returns true if it was the last one:
  // then no round is open, and the references to its memory are dropped.
  bool Count(const FrameHeader& header);

  // True if frames of the expected round are missing.
  bool open() const { return missing_ > 0; }
  // The round that was expected last.
  int64_t round() const { return round_; }
  // True if all frames of the chunk in that round have arrived.
  bool Complete(const Chunk& chunk) const;

  // Names the senders of the missing frames: "shard 0 (chunks 1, 4), shard 1
  // (chunk 2)". MissingOf names those of the chunks for which `concerns`
  // returns true.
  std::string Missing() const;
  std::string MissingOf(
      const std::function<bool(const Chunk&)>& concerns) const;

 private:
  // Marks as arrived the frames that a sparse round does not send.
  void LeaveOut(const SparseGradient& sparse);
  // Marks as arrived one frame that the round does not send.
  void LeaveOut(const Chunk& chunk, int part, int64_t frame);
  // Index of a frame in arrived_.
  int64_t IndexOf(const Chunk& chunk, int part, int64_t frame) const;
  absl::Status CheckSender(const Chunk& chunk, const FrameHeader& header) const;

  JobPtr job_;                // The job in the current epoch.
  const int layer_;           // Index in job_->layers.
  const ChunkFrames frames_;  // Frames of one part.

  int64_t round_ = kInitialRound - 1;  // The round that was expected last.
  Buffer values_;                      // Memory of part 0.
  Buffer state_;                       // Memory of the parts after it.
  int parts_ = 1;                      // Number of parts.
  std::optional<PeerId> donor_;  // Sender of all frames, if it is a donor.
  // True for frames that have arrived or are not sent.
  std::vector<bool> arrived_;
  int64_t missing_ = 0;  // Count of false in arrived_.
};

}  // namespace nereus
