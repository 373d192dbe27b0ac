#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/ring_segments.h"
#include "worker/machine/exchange.h"
#include "worker/machine/peer_rounds.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kRing: all-reduce on a ring of the round's workers, ordered by their
// positions. ring_exchange.cc explains the algorithm.
//
// A round's memory has the size of the layer. A sum is received in this memory,
// this worker's gradient is added to it, and the sum is sent on from it; the
// mean lands in the same place later. Each mean is made once, so all workers
// have the same bits. The order of additions depends on the positions alone, so
// two runs with the same workers have the same bits, too.
class RingExchange final : public Exchange {
 public:
  // Both parameters: not owned; must outlive this.
  RingExchange(const WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  void Gather(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  bool OnFrame(const FrameHeader& header, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override { rounds_.OnEpoch(out); }
  std::string Missing() const override;

 private:
  using Round = PeerRounds::Round;
  using Place = PeerRounds::Place;

  // The ring.

  // Position of the worker `count` places after this one.
  int After(const Round& round, int count) const;
  // Position of the worker before this one.
  int Before(const Round& round) const {
    return After(round, round.contributors - 1);
  }
  void SendToNext(Frame frame, Outbox& out) const;

  // The two passes.

  // Adds this worker's gradient to the sum in a frame and sends the sum on. If
  // this worker is the last one of the segment, makes the mean instead.
  void PassSum(const FrameHeader& header, Outbox& out);
  // Sends the mean in `values` on.
  void PassMean(const FrameHeader& header, Buffer values, Outbox& out) const;
  // Names the contribution of the worker at `position` that a frame carries.
  // The values that begin a sum are checked by the next worker, which loads
  // them into its cache anyway.
  GradientCheck ContributionCheck(const Round& round, int position,
                                  const FrameHeader& header) const;
  // Returns the part of this worker's gradient that is added to the frame, with
  // the check that the job asks for.
  Addend OwnAddend(const Round& round, const FrameHeader& header) const;
  // True if this worker is the last to receive the mean of the segment.
  bool IsLastWith(const Round& round, uint32_t segment) const;

  // Frames and memory.

  absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                  const Round& round) const;
  // Number of a sparse layer's frame.
  absl::StatusOr<int64_t> FindSparseFrame(const FrameHeader& header,
                                          const Round& round) const;
  // OK if the frame comes from the worker before this one, and this worker can
  // use it in the present state of `round`.
  absl::Status CheckOnRing(const FrameHeader& header, const Round& round) const;
  // Calls `each` for every frame of segment `index`. The frame has the header
  // that this worker would send, and its part of `values`, which are those of
  // the whole layer.
  template <typename Each>
  void ForFrames(const Round& round, FrameKind kind, int64_t index,
                 const Buffer& values, Each each) const;
  RingSegments SegmentsOf(const Round& round) const {
    return RingSegments(layer_.spec().parameters, round.contributors);
  }
  // Segment that a sparse layer's frame belongs to.
  int64_t SegmentOfSparse(const Round& round, int64_t frame) const {
    return layer_.sparse->BlockOf(frame) % round.contributors;
  }
  // Position of the frame's first value in the layer.
  int64_t OffsetOf(const Round& round, const FrameHeader& header) const;
  // Part of this worker's gradient that is added to the frame.
  Buffer OwnValues(const Round& round, const FrameHeader& header) const;
  // Sends all means of `round`, to a worker that recovers it.
  void SendMemory(const Round& round, PeerId to, Outbox& out) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  PeerRounds rounds_;          // Memory of the open rounds.
};

}  // namespace nereus
