#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/machine/exchange.h"
#include "worker/machine/local_half.h"
#include "worker/machine/peer_rounds.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kFactor: each worker's two factors go to every other worker, and each
// worker makes the mean gradient with one product over the stacked factors of
// all workers, in the order of their seats. So all workers compute the same
// bits.
//
// A worker sends its factors to its mates, and to one carrier on each other
// host. The carrier hands them on to its own mates, so the factors of a worker
// cross the link of each host once. The workers of a host share the product
// (ProductParts): each worker multiplies a part and hands the part to its
// mates.
//
// A worker whose step has more rows than K contributes its dense gradient
// instead, which goes the same way. Its rows of the stacks are then zero, and
// each worker adds the sum of the dense gradients to the product.
//
// The memory of a round is two stacks, one for each factor, with workers * K *
// (M + N) floats in all. The factors of the worker with seat s are rows [s * K,
// s * K + K). If workers share the product, the memory has room for a gradient,
// too. Each dense gradient has memory of its own. Two rounds are in memory at
// once and, after an epoch has ended, a third one (PeerRounds).
class FactorExchange final : public Exchange {
 public:
  // `layer`, `ledger`: not owned; must outlive this.
  FactorExchange(WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox& out) override { PlaceOwn(out); }
  void Contribute(Outbox& out) override;
  // Does nothing: Finish, which the Syncer calls next, makes the product.
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  void OnFrame(const Frame& frame, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;
  std::string Missing() const override;

 private:
  using Round = PeerRounds::Round;
  using Place = PeerRounds::Place;
  using DenseGradient = PeerRounds::DenseGradient;

  // Copies this worker's factors into its rows of the stacks, or its dense
  // gradient into the round's memory.
  void PlaceOwn(Outbox& out);
  // Returns the memory of the dense gradient of the worker with this seat.
  // Without one, adds it to the round: no factors of the worker are expected
  // any more, and its rows of the stacks become zero.
  const DenseGradient& DenseOf(Round& round, int seat, Outbox& out);
  // OK if the worker whose dense gradient a frame begins has sent no factors in
  // this round.
  absl::Status CheckSentNoFactors(const FrameHeader& header,
                                  const Round& round) const;
  // Returns the place of a frame. Errors: kInvalidArgument.
  absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                  const Round& round) const;
  // Returns the rows of the worker with this seat in the stack of `matrix`.
  Buffer Rows(const Round& round, int seat, uint8_t matrix) const;
  // Returns the receivers of this worker's factors.
  RankList ReceiversIn(const Round& round) const;
  // Returns the place of a frame of a mate's part of the product.
  absl::StatusOr<Place> FindPart(const FrameHeader& header,
                                 const Round& round) const;
  // OK if the frame comes from the worker that made the factors, or from this
  // host's carrier of these factors.
  absl::Status CheckSender(const FrameHeader& header, const Round& round) const;
  // Appends this worker's part of the open round's product and hands it to the
  // mates, once all factors are there. If the step is skipped, no worker makes
  // a part: this worker then does not wait for any.
  void MakePart(Outbox& out);
  // Appends the product of the two stacks plus the sum of the dense gradients,
  // which is the mean gradient. Only its rows [begin, end) are computed, and
  // written to `gradient`.
  void Multiply(Round& round, int64_t begin, int64_t end, Buffer gradient,
                Outbox& out) const;
  // Appends the actions that make the mean gradient, and returns its memory.
  // Returns an empty buffer if the mean is in the memory that the caller gave.
  Buffer TakeMean(Round& round, Outbox& out);
  // Number of a round's frames with factors. Frames with parts of the product
  // have the numbers after these.
  int64_t FactorFrames(const Round& round) const {
    return round.contributors * frames_per_worker_;
  }

  WorkerLayer& layer_;               // The layer; not owned.
  const RoundLedger& ledger_;        // The layer's rounds; not owned.
  const int64_t frames_per_worker_;  // Number of frames of one contribution.
  PeerRounds rounds_;                // Memory of the open rounds.
  LocalHalf local_;                  // Hands on what other hosts send.
};

}  // namespace nereus
