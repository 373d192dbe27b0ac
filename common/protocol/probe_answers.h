#pragma once

#include <cstdint>
#include <map>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/outbox.h"

namespace nereus {

// Longest memory from which, and to which, a train of probes is copied: more
// than the caches of a processor's core hold. With the same few bytes for each
// frame, a worker would measure these caches.
inline constexpr int64_t kProbeMemoryFrames = 32;
inline constexpr int64_t kProbeMemoryBytes =
    kProbeMemoryFrames * kFramePayloadBytesMax;

// Answers of one member to the probes of workers. By probes, a worker measures
// how fast its host's link is, or the memory of its host. A train of probes has
// several frames (kMoreFollow, kLastOfTrain). The last one is answered by a
// frame without payload (kTrainAnswer), which has the train's number as its
// round. A probe belongs to no layer.
//
// A worker copies the probes of its mates, as it does with parts of gradients
// and results: otherwise it would read no byte of what is in shared memory.
//
// Pure bookkeeping; a machine owns it. Memory: a number for each worker that
// has sent probes in the epoch; kProbeMemoryBytes on a worker that mates probe.
class ProbeAnswers {
 public:
  // Returns where a probe lands. Errors: kInvalidArgument, the job measures
  // nothing, the fields are not those of a probe, or `from` is neither a worker
  // that probes this server nor a worker of this worker's host.
  absl::StatusOr<Landing> OnHeader(const Job& job, PeerId self, PeerId from,
                                   const FrameHeader& header) const;

  // Answers the probe if it is the last one of its train. A worker gets at most
  // 65,536 answers in an epoch. Without this limit, it could fill the queue of
  // frames to it with answers.
  void OnFrame(const Job& job, PeerId self, PeerId from,
               const FrameHeader& header, Outbox& out);

  // Enters the job's next epoch.
  void OnEpoch() { answers_.clear(); }

 private:
  std::map<int32_t, int64_t> answers_;  // Answers in this epoch, by worker.
  // Place for the payloads of mates' probes; empty before the first of them.
  // Each payload goes behind the one before it.
  mutable Buffer memory_;
  int64_t frames_ = 0;  // Number of probes of mates that have arrived.
};

// Returns where the answer to a train lands. Errors: kInvalidArgument, the job
// measures nothing, the fields are not those of an answer, or `from` is not a
// member that `self` may probe.
absl::StatusOr<Landing> PlaceProbeAnswer(const Job& job, PeerId self,
                                         PeerId from,
                                         const FrameHeader& header);

}  // namespace nereus
