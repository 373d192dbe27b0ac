#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/machine/exchange.h"
#include "worker/machine/local_half.h"
#include "worker/machine/peer_rounds.h"
#include "worker/machine/ring_frames.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kRing: all-reduce on a ring of the round's hosts, in the order of the
// line-up. ring_exchange.cc explains the algorithm.
//
// A round's memory has the size of the layer. A sum is received in this memory,
// the host's part is added to it, and the sum is sent on from it; the mean
// lands in the same place later. Each mean is made once, so all workers have
// the same bits. Where each host has one worker, the order of additions depends
// on the line-up alone, so two runs with the same workers have the same bits,
// too. Where a host has several, their parts are added in the order of arrival,
// unless the job is deterministic.
class RingExchange final : public Exchange {
 public:
  // Both parameters: not owned; must outlive this.
  RingExchange(const WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  void Gather(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  bool OnFrame(const Frame& frame, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;
  std::string Missing() const override;

 private:
  using Round = PeerRounds::Round;

  // The ring. Hosts have the numbers of the round's line-up.

  // Number of the host `count` places after this one.
  int After(const Round& round, int count) const;
  // Number of the host before this one.
  int Before(const Round& round) const {
    return After(round, round.lineup.hosts() - 1);
  }
  // Rank of the worker that carries frame `index` on `host`.
  int32_t CarrierOn(const Round& round, int host, int64_t index) const {
    return layer_.job->CarrierOf(layer_.index, index, round.round, host);
  }
  bool Carries(const Round& round, int64_t index) const {
    return IsAlone(round) || CarrierOn(round, round.host, index) == layer_.rank;
  }
  // True if no other worker of this host takes part in the round.
  bool IsAlone(const Round& round) const {
    return round.lineup.at(round.host).size() == 1;
  }
  // True if this host is the last to receive the mean of the segment.
  bool IsLastWith(const Round& round, int segment) const;
  // Sends a frame to the carrier on the next host.
  void SendToNext(const Round& round, int64_t index, Frame frame,
                  Outbox& out) const;

  // The two passes. All work on frame `index` of the round.

  // Sends this worker's part to the carrier on this host, or takes it as such.
  void ContributeFrame(Round& round, int64_t index, Outbox& out);
  // Adds the part of worker `rank`, this one or a mate, to the host's part.
  // Returns true if the host's part is whole.
  bool AddPart(int rank, const Round& round, int64_t index, Addend addend,
               Outbox& out);
  // The host's part is whole: begins the sum, or passes on the sum of the hosts
  // before, if it has come.
  void OnHostPart(Round& round, int64_t index, Outbox& out);
  // Adds the host's part to the sum and sends it on. If this host is the last
  // one of the segment, makes the mean instead.
  void PassSum(Round& round, int64_t index, Outbox& out);
  // This worker has made the mean.
  void OnMean(Round& round, int64_t index, Outbox& out);
  // Sends the mean on to the next host, and to the mates.
  void PassMean(const Round& round, int64_t index, Outbox& out) const;
  // Returns the host's part, with the check that the job asks for.
  Addend HostPart(const Round& round, int64_t index);
  // Names the contribution of the worker `rank` that a frame carries. The
  // values that begin a sum are checked by the next host, which loads them into
  // its cache anyway.
  GradientCheck CheckOf(const Round& round, int32_t rank, int64_t index) const {
    return local_.CheckOf(rank, round.round, FramesOf(round).OffsetOf(index));
  }

  // Frames and memory.

  RingFrames FramesOf(const Round& round) const {
    return RingFrames(layer_, round.lineup.hosts());
  }
  // True if the frame is sent in the round: those of a sparse layer's blocks
  // that stay behind are not.
  bool Travels(const Round& round, int64_t index) const {
    return round.chosen.empty() || round.chosen[index];
  }
  // Returns the header of the frame as this worker sends it.
  FrameHeader HeaderOf(const Round& round, FrameKind kind, int64_t index) const;
  // Memory of the frame's values in the round.
  Buffer MemoryOf(const Round& round, int64_t index) const;
  // This worker's gradient of the frame.
  Buffer OwnValues(const Round& round, int64_t index) const;
  // OK if the frame comes from the right worker, and this worker can use it in
  // the present state of `round`.
  absl::Status CheckOnRing(const FrameHeader& header, const Round& round,
                           int64_t index) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  PeerRounds rounds_;          // Memory of the open rounds.
  LocalHalf local_;            // Parts of the workers of this host.
};

}  // namespace nereus
