#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/machine/sparse_gradient.h"

namespace nereus {

// Puts one layer's results together from the frames of its chunks: each lands
// in its final place, is counted once, and the last one completes the round.
//
// Pure bookkeeping; one round is expected at a time.
class ResultAssembly {
 public:
  // `layer`: in job->layers.
  ResultAssembly(JobPtr job, int layer);

  // Expects round `round`, part 0 into `values`, float32 of the whole layer,
  // and parts 1, 2, ... into `state`, which has as many values for each of
  // them, or none. From the shards that own the chunks, or all from `donor`.
  // The same round again from the same one goes on with what has come. From
  // another donor it starts over: the one before may have died with a round
  // that the others did again without it.
  //
  // Of a sparse round, `sparse`, only what travels comes, and where nothing of
  // a chunk does, a frame without payload.
  void Expect(int64_t round, Buffer values, Buffer state,
              std::optional<PeerId> donor,
              const SparseGradient* sparse = nullptr);

  // The job's next epoch; what has come stays.
  void OnEpoch(JobPtr job) { job_ = std::move(job); }

  // Where a kResult frame goes. Errors: kInvalidArgument.
  absl::StatusOr<Landing> Place(const FrameHeader& header) const;

  // Counts a frame that Place accepted; true if it was the last one. Then no
  // round is open, and the references to its memory are dropped.
  bool Count(const FrameHeader& header);

  bool open() const { return missing_ > 0; }
  // The open one, or the last that was.
  int64_t round() const { return round_; }
  // Whether all of a chunk has come.
  bool Complete(const Chunk& chunk) const;

  // "shard 0 (chunks 1, 4), shard 1 (chunk 2)": whose results are missing.
  std::string Missing() const;

 private:
  // How many frames a chunk has, that without payload included, which is the
  // last.
  int64_t FramesOf(const Chunk& chunk) const;
  absl::StatusOr<int64_t> FindFrame(const Chunk& chunk,
                                    const FrameHeader& header) const;
  // Counts in what does not come.
  void LeaveOut(const SparseGradient& sparse);
  // Position of a frame among all frames of the layer.
  int64_t Position(const Chunk& chunk, int part, int64_t frame) const;
  absl::Status CheckSender(const Chunk& chunk, const FrameHeader& header) const;

  JobPtr job_;
  const int layer_;
  std::vector<int64_t> first_frame_;  // By chunk: its first frame's position.
  int64_t frames_per_part_ = 0;

  int64_t round_ = kInitialRound - 1;
  Buffer values_;
  Buffer state_;
  int parts_ = 1;
  std::optional<PeerId> donor_;
  std::vector<bool> arrived_;  // By position.
  int64_t missing_ = 0;        // Count of false in arrived_.
};

}  // namespace nereus
