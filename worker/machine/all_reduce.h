#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "worker/machine/exchange.h"
#include "worker/machine/local_half.h"
#include "worker/machine/peer_rounds.h"
#include "worker/machine/ring_frames.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Base of the exchanges in which hosts send each other sums of dense gradients:
// RingExchange and DirectExchange. Each frame has one carrier on every host
// (LocalHalf). The mates send the carrier their parts of the frame, and the
// carrier adds them up. This sum is the host's part. When the carrier has the
// mean over all hosts, it hands the mean on to its mates. The workers of a host
// carry its frames in turn, so they share the work. With one host, the carrier
// makes the mean from the host's part alone.
//
// The memory of a round has the size of the layer: the mean is made in it, or
// lands in it.
class AllReduce : public Exchange {
 public:
  void Begin(Outbox&) override {}
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;

 protected:
  using Round = PeerRounds::Round;

  // `layer`, `ledger`: not owned; must outlive this. `shape_of`: returns the
  // shape of a round with the given line-up.
  AllReduce(const WorkerLayer& layer, const RoundLedger& ledger,
            const std::function<PeerRounds::Shape(const Lineup&)>& shape_of);

  // Handles that the host's part of a frame is whole. The round has several
  // hosts.
  virtual void SendPart(Round& round, int64_t index, Outbox& out) = 0;
  // Handles that a frame's mean is in this worker's memory: sends it to those
  // that get it from this worker.
  virtual void PassMean(const Round& round, int64_t index, Outbox& out) = 0;
  // Returns the frames of a round.
  virtual RingFrames FramesOf(const Round& round) const = 0;

  // All functions below work on frame `index` of the round.

  // Sends this worker's part to the carrier on this host. If this worker is the
  // carrier, adds the part to the host's part instead, and calls OnHostPart if
  // the host's part is whole.
  void ContributeFrame(Round& round, int64_t index, Outbox& out);
  // Takes a mate's part, and calls OnHostPart if the host's part is whole.
  void AddLocal(const Frame& frame, Round& round, int64_t index, Outbox& out);
  // Called when this worker has made the mean. Passes the mean on.
  void OnMean(Round& round, int64_t index, Outbox& out);
  // True if this worker is the only contributor to the round, and its gradient
  // is the mean: nothing is copied. REQUIRES: this worker has sent.
  bool KeepsGradient(const Round& round) const;
  // Returns the host's part. If this worker is alone on its host, and the job
  // checks contributions, the part has a check for NaNs. With several workers
  // AddPart has made the checks.
  Addend HostPart(const Round& round, int64_t index);
  // Returns the check for NaNs of the contribution of worker `rank`.
  ValueCheck CheckOf(const Round& round, int32_t rank, int64_t index) const {
    return local_.CheckOf(rank, round.round, FramesOf(round).OffsetOf(index));
  }
  // True if this worker has the host's part.
  bool HasPart(const Round& round, int64_t index) const {
    return IsAlone(round) ? round.sent : local_.IsSummed(round.round, index);
  }

  // Rank of the worker that carries the frame on `host`.
  int32_t CarrierOn(const Round& round, int host, int64_t index) const {
    return layer_.job->CarrierOf(layer_.index, index, round.round, host);
  }
  // True if this worker carries the frame on its host.
  bool Carries(const Round& round, int64_t index) const {
    return IsAlone(round) || CarrierOn(round, round.host, index) == layer_.rank;
  }
  // True if no other worker of this host takes part in the round.
  bool IsAlone(const Round& round) const {
    return round.lineup.at(round.host).size() == 1;
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
  // Returns an error that names the two workers, if the frame does not come
  // from the carrier on host `from`. A frame from this host is an outcome that
  // the carrier hands on, and only mates take it; only carriers take others.
  absl::Status CheckCarriers(const FrameHeader& header, const Round& round,
                             int from, int64_t index) const;
  // Returns an error for a frame with a mean that came before this worker sent
  // its gradient: the mean cannot contain the gradient.
  absl::Status CheckMean(const FrameHeader& header, const Round& round) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  PeerRounds rounds_;          // Memory of the open rounds.
  LocalHalf local_;            // Parts of the workers of this host.

 private:
  // Adds the part of worker `rank`, which is this worker or a mate, to the
  // host's part. Returns true if the host's part is whole.
  bool AddPart(int rank, const Round& round, int64_t index, Addend addend,
               Outbox& out);
  // Called when the host's part is whole. If the round has one host, makes the
  // mean. Else calls SendPart.
  void OnHostPart(Round& round, int64_t index, Outbox& out);
};

}  // namespace nereus
