#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/ring_segments.h"
#include "worker/machine/peer_syncer.h"

namespace nereus {

// Scheme kRing: all-reduce on a ring of the round's contributors, by their
// positions. The layer is cut into a segment for each (RingSegments). Segment s
// goes around from worker s on, each adding its gradient (reduce-scatter);
// worker s - 1, the last, makes the mean and sends it around again from worker
// s on (all-gather). Every frame goes on by itself as soon as it is there, so a
// large segment keeps all links busy.
//
// With Overlap::kDecoupled means go around once a worker gathers the layer, and
// so asks the others to.
//
// A segment is summed in an order that depends on nothing but the positions,
// and its mean is made once: all workers have the same bits, in every run.
//
// Of a sparse layer the frames are blocks: each goes around by itself, from the
// worker on whose turn it is.
//
// A round's memory: the layer. A sum is received there, added to and sent on;
// the mean comes later, to the same place.
class RingSyncer final : public PeerSyncer {
 public:
  RingSyncer(JobPtr job, int layer, int rank, LayerMemory memory);

 private:
  absl::Status Keep(Buffer gradient) override;
  void KeepFactors(FactorBuffers factors, Outbox& out) override;
  Buffer kept() const override { return gradient_; }
  void Release() override { gradient_ = Buffer(); }

  std::vector<int64_t> MemoryElements(int contributors) const override;
  int64_t MemoryFrames(int contributors) const override;
  void Begin(Round& round) override;
  void PlaceOwn(Outbox&) override {}
  void SendOwn(Outbox& out) override;
  void GatherOwn(Outbox& out) override;
  absl::StatusOr<Landing> PlaceFrame(const FrameHeader& header) const override;
  void TakeFrame(const FrameHeader& header, Outbox& out) override;
  absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                  const Round& round) const override;
  void SendMemory(const Round& round, PeerId to, Outbox& out) const override;
  Buffer TakeMean(const Round& round, Outbox& out) override;
  std::vector<std::string> MissingPeers(const Round& round) const override;
  FrameKind memory_kind() const override { return FrameKind::kMean; }
  bool Carries(FrameKind kind) const override {
    return kind == FrameKind::kSum || kind == FrameKind::kMean;
  }

  // The positions next to this worker's, `count` places on.
  int Around(const Round& round, int count) const;
  RingSegments SegmentsOf(const Round& round) const;
  // By frame of the memory: whether the sum of those before has come.
  std::vector<bool>& SumsOf(int64_t round) { return sums_[round % 2]; }
  const std::vector<bool>& SumsOf(int64_t round) const {
    return sums_[round % 2];
  }

  // A frame's first value in the layer, and what this worker adds to it.
  int64_t OffsetOf(const Round& round, const FrameHeader& header) const;
  Buffer OwnValues(const Round& round, const FrameHeader& header) const;
  // The segment of a sparse layer's frame.
  int64_t TurnOf(const Round& round, int64_t frame) const {
    return sparse_->BlockOf(frame) % round.contributors;
  }
  absl::StatusOr<int64_t> FindSparse(const FrameHeader& header,
                                     const Round& round) const;

  absl::Status CheckOnRing(const FrameHeader& header, const Round& round) const;
  // Names the contribution of the worker at `position` that a frame carries.
  // The first sum of a segment is one contribution; the next worker checks it,
  // since the values are in its cache by then.
  GradientCheck ContributionCheck(const Round& round, int position,
                                  const FrameHeader& header) const;
  // Returns this worker's values for a frame, with the check that the job asks
  // for.
  Addend OwnAddend(const Round& round, const FrameHeader& header) const;
  // Adds this worker's gradient to the sum of a frame, and sends it on; the
  // last one makes the mean of it.
  void PassSum(const FrameHeader& header, Outbox& out);
  void PassMean(const FrameHeader& header, Buffer values, Outbox& out) const;
  // Whether this worker is the last to have the mean of a segment.
  bool IsLastWith(const Round& round, uint32_t segment) const;
  // Calls `each` for every frame of segment `index`, with its header, as if
  // this worker sent it, and its place in `values`, which has the whole layer.
  template <typename Each>
  void ForFrames(const Round& round, FrameKind kind, int64_t index,
                 const Buffer& values, Each each) const;
  void SendToNext(Frame frame, Outbox& out) const;

  Buffer gradient_;  // Pushed for next_round().
  Buffer product_;   // The same, where the caller gave factors and no room.
  std::array<std::vector<bool>, 2> sums_;  // By round % 2.
};

}  // namespace nereus
