#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame_sums.h"
#include "common/protocol/lineup.h"
#include "common/protocol/machine.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Local half of one layer's rounds: what the workers of one host do among
// themselves, so that a host sends and receives each value once. All schemes
// use it.
//
// A layer has units: chunks, frames of a round's memory, or the factors of one
// worker. For each unit one worker of the host is the carrier, and the other
// workers are its mates. Each mate sends its part of the unit to the carrier
// (FrameKind::kLocal). The carrier adds the parts, frame by frame, and speaks
// for the host in the scheme. It hands the outcome on to its mates
// (FrameKind::kOutcome). Factors are not added, only handed on. Frames between
// mates are float32.
//
//   open --parts of all workers of the host--> summed     (each frame)
//     ^                                           |
//     '------ round + 2, or a new epoch ----------'
//
// Two rounds are open, because a mate can be one round ahead of this worker. A
// mate is not further ahead, because it cannot finish a round without this
// worker's contribution to it. The carrier and its mates follow from the
// line-up of the round. If they followed from all workers of the epoch, a
// carrier would wait for a worker that takes part only in later rounds. A new
// epoch drops all sums, and workers contribute again.
//
// A worker that is alone on its host carries all units, has no mates, and needs
// none of this. With partial rounds (a `--quorum` other than `all`) every
// worker counts as alone, because the servers count contributions one by one.
//
// There is no sum over the GPUs of a host yet (peer copies, NCCL). It belongs
// in the driver, before Add: one worker would then push for a group of GPUs,
// and count as one worker here.
//
// Pure bookkeeping; an exchange owns it. Memory, where several workers share a
// host: for two rounds, the sums of the frames that this worker carries; in a
// deterministic job, values that wait for their turn (FrameSums).
class LocalHalf {
 public:
  // `layer`, `ledger`: not owned; must outlive this. `frames_of`: returns the
  // number of frames of a round with the given line-up.
  LocalHalf(const WorkerLayer& layer, const RoundLedger& ledger,
            std::function<int64_t(const Lineup&)> frames_of);

  // True if no other worker of this host takes part in `round`.
  bool IsAlone(int64_t round) const;
  // Returns the rank of this host's carrier of a unit. REQUIRES, here and
  // below: this worker takes part in the round.
  int32_t CarrierOf(int64_t round, int64_t unit) const;
  // True if this worker is the carrier of a unit.
  bool Carries(int64_t round, int64_t unit) const {
    return CarrierOf(round, unit) == layer_.rank;
  }
  // Returns the ranks of this worker's mates in `round`.
  RankList MatesIn(int64_t round) const;

  // Returns where a frame of a mate's part lands: in scratch, or nowhere if it
  // is late or repeated. `unit`, `frame`: indices of the unit and of the frame
  // in the layer. Returns kInvalidArgument if the round is not open, if the
  // sender is no mate, or if this worker does not carry the unit.
  absl::StatusOr<Landing> OnLocalHeader(const FrameHeader& header, int64_t unit,
                                        int64_t frame) const;

  // Returns the memory of a frame's sum, `bytes` long. Calls for the same round
  // and frame return the same memory.
  Buffer SumOf(int64_t round, int64_t frame, int64_t bytes);
  // Adds the part of worker `rank`, which is this worker or a mate, to the sum
  // of a frame. `place`: memory of the sum, the same in all calls for a frame:
  // that of SumOf, or the caller's own of this length.
  // `offset`: index of the frame's first value in the layer. When the last part
  // is added, the sum is multiplied by `factor`. Returns true if the sum is
  // complete. REQUIRES: Has is false for this part.
  bool Add(int rank, int64_t round, int64_t frame, int64_t offset,
           const Buffer& place, Addend addend, float factor, Outbox& out);
  // True if Add was called for the part of worker `rank`. In a deterministic
  // sum, the part may still wait for its turn.
  bool Has(int rank, int64_t round, int64_t frame) const;
  // True if the parts of all workers of this host are in the sum of the frame.
  bool IsSummed(int64_t round, int64_t frame) const;
  // Returns the ranks of this host's workers whose parts have not been added.
  std::vector<int32_t> MissingOf(int64_t round, int64_t frame) const;

  // Sends `values`, the outcome of a frame in float32, to the mates. `header`:
  // the header that the outcome has, or would have, on its way between hosts.
  // HandOn replaces its kind, its sender and the fields that describe the
  // payload.
  void HandOn(FrameHeader header, Buffer values, Outbox& out) const;

  // Notes that `round` is done, perhaps by a result that the servers have made
  // in an earlier epoch. Sums that are not complete no longer refer to this
  // worker's gradient, which then belongs to its caller.
  void Close(int64_t round);
  // Enters the job's next epoch: parts of the last epoch no longer count.
  void OnEpoch();

  // Returns the request to check a frame's values for NaNs. It names worker
  // `rank` as the one that computed the gradient.
  ValueCheck CheckOf(int rank, int64_t round, int64_t offset) const;
  // Bytes of values that wait for their turn in a deterministic sum.
  int64_t held_bytes() const;

 private:
  // Sums of one round.
  struct Round {
    int64_t round = kInitialRound - 1;  // Its number; kInitialRound - 1: none.
    FrameSums sums;                     // Which parts each sum has.
    std::vector<Buffer> memory;  // Memory of the sums; empty before SumOf.
  };

  // Ranks of this host's workers in `round`, ascending.
  absl::Span<const int32_t> Local(int64_t round) const;
  // Returns the sums of `round`. Returns nullptr if Open was not called for
  // this round, or was called for a later round in its place.
  const FrameSums* Find(int64_t round) const;
  // Returns the sums of `round`. If there are none, empties the place of these
  // sums, which an earlier round may still have.
  Round& Open(int64_t round);

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  const std::function<int64_t(const Lineup&)> frames_of_;  // See constructor.
  std::array<Round, 2> rounds_;  // Sums of round t are in t % 2.
};

}  // namespace nereus
