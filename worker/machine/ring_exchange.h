#pragma once

#include <cstdint>
#include <string>

#include "worker/machine/all_reduce.h"
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
class RingExchange final : public AllReduce {
 public:
  // `layer`, `ledger`: not owned; must outlive this.
  RingExchange(const WorkerLayer& layer, const RoundLedger& ledger);

  void Contribute(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const Frame& frame, Outbox& out) override;
  std::string Missing() const override;

 private:
  // The ring. Hosts have the numbers that the round's line-up gives them.

  // Number of the host `count` places after this one.
  int After(const Round& round, int count) const;
  // Number of the host before this one.
  int Before(const Round& round) const {
    return After(round, round.lineup.hosts() - 1);
  }
  // True if this host is the last to receive the mean of the segment.
  bool IsLastWith(const Round& round, int segment) const;
  // Sends a frame to the carrier on the next host.
  void SendToNext(const Round& round, int64_t index, Frame frame,
                  Outbox& out) const;

  // The two passes. All these functions work on frame `index` of the round.

  // If the segment starts at this host, begins the sum. Otherwise passes on the
  // sum of the hosts before, if that has arrived.
  void SendPart(Round& round, int64_t index, Outbox& out) override;
  // Adds the host's part to the sum and sends it on. If this host is the last
  // one of the segment, makes the mean instead. If the hosts before have one
  // worker, whose gradient begins the sum, checks that gradient: this worker
  // loads the values into its cache anyway.
  void PassSum(Round& round, int64_t index, Outbox& out);
  // Sends the mean to the mates and, unless this host is the last to receive
  // it, to the next host.
  void PassMean(const Round& round, int64_t index, Outbox& out) override;

  RingFrames FramesOf(const Round& round) const override {
    return RingFrames(layer_, round.lineup.hosts());
  }
  // OK if the frame comes from the right worker, and this worker can use it in
  // the present state of `round`.
  absl::Status CheckOnRing(const FrameHeader& header, const Round& round,
                           int64_t index) const;
};

}  // namespace nereus
