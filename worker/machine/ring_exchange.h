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
// The memory of a round has the size of the layer. A sum lands in this memory,
// this worker adds the host's part to it, and sends the sum on from there.
// Later the mean lands in the same place. Each mean is made once, so all
// workers have the same bits. Where each host has one worker, the order of
// additions depends on the line-up alone: two runs with the same workers have
// the same bits, too. Where a host has several workers, the carrier adds their
// parts in the order of arrival, unless the job is deterministic
// (`--deterministic`).
class RingExchange final : public Exchange {
 public:
  // `layer`, `ledger`: not owned; must outlive this.
  RingExchange(const WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const Frame& frame, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;
  std::string Missing() const override;

 private:
  using Round = PeerRounds::Round;

  // The ring. Hosts have the numbers that the round's line-up gives them.

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
  // True if this worker carries frame `index` on its host.
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

  // The two passes. All these functions work on frame `index` of the round.

  // Sends this worker's part to the carrier on this host. If this worker is the
  // carrier, adds the part to the host's part instead, and calls OnHostPart if
  // the host's part is whole.
  void ContributeFrame(Round& round, int64_t index, Outbox& out);
  // Adds the part of worker `rank`, which is this worker or a mate, to the
  // host's part. Returns true if the host's part is whole.
  bool AddPart(int rank, const Round& round, int64_t index, Addend addend,
               Outbox& out);
  // Called when the host's part is whole. If the round has one host, makes the
  // mean. Else, if the segment starts at this host, begins the sum. Otherwise
  // passes on the sum of the hosts before, if that has arrived.
  void OnHostPart(Round& round, int64_t index, Outbox& out);
  // Adds the host's part to the sum and sends it on. If this host is the last
  // one of the segment, makes the mean instead.
  void PassSum(Round& round, int64_t index, Outbox& out);
  // Called when this worker has made the mean. Passes the mean on.
  void OnMean(Round& round, int64_t index, Outbox& out);
  // Sends the mean to the mates and, unless this host is the last to receive
  // it, to the next host.
  void PassMean(const Round& round, int64_t index, Outbox& out) const;
  // Returns the host's part. If this worker is alone on its host, and the job
  // checks contributions, the part has a check for NaNs. With several workers
  // AddPart has made the checks.
  Addend HostPart(const Round& round, int64_t index);
  // Returns the check for NaNs of the contribution of worker `rank` to a frame.
  // If the worker is alone on its host and its contribution begins a sum, the
  // next host makes the check, because it loads the values into its cache
  // anyway.
  ValueCheck CheckOf(const Round& round, int32_t rank, int64_t index) const {
    return local_.CheckOf(rank, round.round, FramesOf(round).OffsetOf(index));
  }

  // Frames and memory.

  RingFrames FramesOf(const Round& round) const {
    return RingFrames(layer_, round.lineup.hosts());
  }
  // True if the frame is sent in the round. In a sparse layer these are the
  // frames of the blocks that travel or, if none does, the last frame. REQUIRES
  // for a sparse layer: this worker has sent in the round.
  bool Travels(const Round& round, int64_t index) const {
    return round.chosen.empty() || round.chosen[index];
  }
  // Returns the header with which this worker sends the frame.
  FrameHeader HeaderOf(const Round& round, FrameKind kind, int64_t index) const;
  // Memory of the frame's values in the round.
  Buffer MemoryOf(const Round& round, int64_t index) const;
  // This worker's part of the frame: its gradient, in a sparse layer with the
  // residual added.
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
