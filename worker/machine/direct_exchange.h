#pragma once

#include <cstdint>
#include <string>

#include "worker/machine/all_reduce.h"
#include "worker/machine/ring_frames.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kDirect: all-reduce in one hop. The carrier of a frame on each host
// sends the host's part to the carrier on every other host (frames kSum, whose
// chunk is the number of the sending host). A carrier that has the parts of all
// hosts adds them in the order of the line-up, so all hosts make the same bits.
//
//   parts of all hosts --AddParts--> mean --PassMean--> mates
//
// In a round of H hosts a host sends H - 1 times the layer, and the mean is
// there after one hop. A ring (RingExchange) sends less than twice the layer,
// but takes 2 (H - 1) hops. So this is the way for layers that are small enough
// that the hops count, not the bytes.
//
// Besides the mean, the memory of a round has the parts of all hosts: H times
// the layer. In a sparse layer each frame is a block.
class DirectExchange final : public AllReduce {
 public:
  // `layer`, `ledger`: not owned; must outlive this.
  DirectExchange(const WorkerLayer& layer, const RoundLedger& ledger);

  void Contribute(Outbox& out) override;
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const Frame& frame, Outbox& out) override;
  std::string Missing() const override;

 private:
  // Sends the host's part to the carriers on all other hosts.
  void SendPart(Round& round, int64_t index, Outbox& out) override;
  // Notes that the part of `host` is in memory. With the last part, makes the
  // mean.
  void OnPart(Round& round, int host, int64_t index, Outbox& out);
  // Hands the mean on to the mates.
  void PassMean(const Round& round, int64_t index, Outbox& out) override;

  // Hosts cut the layer alike, as if there were one host.
  RingFrames FramesOf(const Round&) const override {
    return RingFrames(layer_, /*hosts=*/1);
  }
  // Returns the index of the frame that `header` announces. Errors:
  // kInvalidArgument, the round has no such frame, or no such host.
  absl::StatusOr<int64_t> Find(const FrameHeader& header,
                               const Round& round) const;
  // OK if the frame comes from the right worker, and this worker can use it in
  // the present state of `round`.
  absl::Status CheckSender(const FrameHeader& header, const Round& round,
                           int64_t index) const;
  // Index in Round::sums of a host's part.
  int64_t PartIndex(const Round& round, int host, int64_t index) const {
    return host * FramesOf(round).count() + index;
  }
  // True if the part of `host` is in memory.
  bool HasPartOf(const Round& round, int host, int64_t index) const {
    return round.sums[PartIndex(round, host, index)];
  }
  // Memory of the part of `host`.
  Buffer PartOf(const Round& round, int host, int64_t index) const;
};

}  // namespace nereus
