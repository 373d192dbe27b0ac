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
// A layer has units: chunks, or frames of a ring's memory. For each unit one
// worker of the host is the carrier. The other workers are its mates: each
// sends its part of the unit to the carrier (kLocal). The carrier adds the
// parts, frame by frame, and speaks for the host in the scheme; it hands the
// outcome on to its mates (kOutcome). Frames between mates are float32.
//
//   open --parts of all workers of the host--> summed     (each frame)
//     ^                                           |
//     '------ round + 2, or a new epoch ----------'
//
// Two rounds are open, as a mate may be one round ahead, and no more: it needs
// this worker's contribution to a round to finish it. The line-up is that of
// the round. With the line-up of the epoch, a carrier would wait for a worker
// that has not joined yet. A new epoch drops all sums: workers contribute
// again.
//
// A worker that is alone on its host carries all units, has no mates, and needs
// none of this. With partial rounds every worker counts as alone, because
// contributions are counted one by one.
//
// A sum over a host's GPUs (peer copies, NCCL) belongs before Add, in the
// driver. It leaves one worker of the group that pushes, which counts here as
// one worker.
//
// Pure bookkeeping; an exchange owns it. Memory, where several workers share a
// host: the sums of the frames that this worker carries, twice, since two
// rounds are open; values that wait for their turn (FrameSums).
class LocalHalf {
 public:
  // `layer`, `ledger`: not owned; must outlive this. `frames_of`: returns the
  // number of frames of a round with that line-up.
  LocalHalf(const WorkerLayer& layer, const RoundLedger& ledger,
            std::function<int64_t(const Lineup&)> frames_of);

  // True if no other worker of this host takes part in `round`.
  bool IsAlone(int64_t round) const;
  // Returns the rank of this host's carrier of a unit. REQUIRES, here and
  // below: this worker takes part in the round.
  int32_t CarrierOf(int64_t round, int64_t unit) const;
  bool Carries(int64_t round, int64_t unit) const {
    return CarrierOf(round, unit) == layer_.rank;
  }
  // Returns the ranks of this worker's mates in `round`.
  RankList MatesIn(int64_t round) const;

  // Returns where a mate's part lands: in scratch, or nowhere if it is late or
  // repeated. `unit` and `frame` are what the header announces. Errors:
  // kInvalidArgument, the round is not open, the sender is no mate, or this
  // worker does not carry the unit.
  absl::StatusOr<Landing> OnLocalHeader(const FrameHeader& header, int64_t unit,
                                        int64_t frame) const;

  // Returns the memory of a frame's sum, `bytes` long: the same in all calls of
  // a round.
  Buffer SumOf(int64_t round, int64_t frame, int64_t bytes);
  // Adds the part of worker `rank`, this one or a mate, to the sum of a frame.
  // `place`: SumOf, or other memory of that length. `offset`: position of its
  // first value in the layer. The last part multiplies the sum by `factor`.
  // Returns true if the sum is complete. REQUIRES: not Has.
  bool Add(int rank, int64_t round, int64_t frame, int64_t offset,
           const Buffer& place, Addend addend, float factor, Outbox& out);
  // True if the part of worker `rank` is in the sum.
  bool Has(int rank, int64_t round, int64_t frame) const;
  // True if the parts of all workers of this host are.
  bool IsSummed(int64_t round, int64_t frame) const;
  // Ranks of the workers whose parts the sum lacks.
  std::vector<int32_t> MissingOf(int64_t round, int64_t frame) const;

  // Sends the mates `values`, float32, the outcome of a frame. `header`: of the
  // frame that brought or asked for it; the kind and the sender change.
  void HandOn(FrameHeader header, Buffer values, Outbox& out) const;

  // Enters the job's next epoch: parts of the last epoch no longer count.
  void OnEpoch();

  // Names the gradient of worker `rank` that a frame's values are part of.
  GradientCheck CheckOf(int rank, int64_t round, int64_t offset) const;
  // Bytes of values that wait for their turn.
  int64_t held_bytes() const;

 private:
  // Sums of one round.
  struct Round {
    int64_t round = kInitialRound - 1;  // Number of the round; or: none.
    FrameSums sums;
    std::vector<Buffer> memory;  // Memory of each sum; empty until it is used.
  };

  // Ranks of this host's workers in `round`, ascending.
  absl::Span<const int32_t> Local(int64_t round) const;
  // The sums of `round`, if they are open; otherwise nullptr.
  const FrameSums* Find(int64_t round) const;
  // Opens the sums of `round`, unless they are open.
  Round& Open(int64_t round);

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  const std::function<int64_t(const Lineup&)> frames_of_;  // See constructor.
  std::array<Round, 2> rounds_;  // Sums of round t are in t % 2.
};

}  // namespace nereus
