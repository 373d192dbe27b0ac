#ifndef NEREUS_WORKER_RESULT_ASSEMBLY_H_
#define NEREUS_WORKER_RESULT_ASSEMBLY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"

namespace nereus {

// Puts one layer's results together from the frames of its chunks: each lands
// in its final place, is counted once, and the last one completes the round.
//
// Pure bookkeeping; one round is open at a time.
class ResultAssembly {
 public:
  // `layer`: in job->layers.
  ResultAssembly(JobPtr job, int layer);

  // Expects round `round`, to be received into `target`, float32 of the whole
  // layer. REQUIRES: no round is open.
  void Open(int64_t round, Buffer target);

  // Where a kResult frame goes. Errors: kInvalidArgument.
  absl::StatusOr<Landing> Place(const FrameHeader& header) const;

  // Counts a frame that Place accepted; true if it was the last one. Then no
  // round is open, and the reference to the target is dropped.
  bool Count(const FrameHeader& header);

  bool open() const { return missing_ > 0; }

  // "shard 0 (chunks 1, 4), shard 1 (chunk 2)": whose results are missing.
  std::string Missing() const;

 private:
  // Position of a frame among all frames of the layer.
  int64_t Position(const Chunk& chunk, int64_t frame) const;

  const JobPtr job_;
  const int layer_;
  std::vector<int64_t> first_frame_;  // By chunk: its first frame's position.

  int64_t round_ = kInitialRound - 1;  // The open one, or the last that was.
  Buffer target_;
  std::vector<bool> arrived_;  // By position.
  int64_t missing_ = 0;        // Count of false in arrived_.
};

}  // namespace nereus

#endif  // NEREUS_WORKER_RESULT_ASSEMBLY_H_
