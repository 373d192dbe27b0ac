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
// host, which hands them on to its mates. So they cross each host's link once.
// The workers of a host share the product (ProductParts): each multiplies a
// part and hands it to its mates.
//
// A round's memory is both stacks: the factors of the worker with seat s are
// rows [s * K, s * K + K). They have workers * K * (M + N) floats. With a
// shared product a gradient follows. Two rounds are in memory at once, and once
// an epoch has ended, a third (PeerRounds).
class FactorExchange final : public Exchange {
 public:
  // Both parameters: not owned; must outlive this.
  FactorExchange(WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox& out) override { PlaceOwn(out); }
  void Contribute(Outbox& out) override;
  // The product waits for this call, or this worker's part does.
  void Gather(Outbox&) override {}
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  bool OnFrame(const Frame& frame, Outbox& out) override;
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox& out) override;
  std::string Missing() const override;

 private:
  using Round = PeerRounds::Round;
  using Place = PeerRounds::Place;

  // Copies this worker's factors into their rows.
  void PlaceOwn(Outbox& out);
  absl::StatusOr<Place> FindPlace(const FrameHeader& header,
                                  const Round& round) const;
  // Rows of a stack that belong to the worker with this seat.
  Buffer Rows(const Round& round, int seat, uint8_t matrix) const;
  // Returns the receivers of this worker's factors.
  RankList ReceiversIn(const Round& round) const;
  // Returns the place of a part of the product that a mate has made.
  absl::StatusOr<Place> FindPart(const FrameHeader& header,
                                 const Round& round) const;
  // OK if the frame comes from the maker of its factors, or from the carrier on
  // this host.
  absl::Status CheckSender(const FrameHeader& header, const Round& round) const;
  // Makes this worker's part of the open round's product and hands it on, once
  // all factors are there. If the step is skipped, expects no part.
  void MakePart(Outbox& out);
  // Appends the product over all stacked rows: rows [begin, end) of the
  // gradient, to `gradient`.
  void Multiply(const Round& round, int64_t begin, int64_t end, Buffer gradient,
                Outbox& out) const;
  // Returns the mean gradient, and appends what makes it. Returns an empty
  // buffer if the mean is in the memory that the caller gave.
  Buffer TakeMean(const Round& round, Outbox& out);
  // Number of a round's frames with factors; parts of the product follow.
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
