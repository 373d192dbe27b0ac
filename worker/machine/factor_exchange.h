#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/machine/exchange.h"
#include "worker/machine/peer_rounds.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kFactor: each worker sends its two factors to every other worker, and
// each worker makes the mean gradient with one product over the stacked factors
// of all workers, in the order of their positions. So all workers compute the
// same bits.
//
// A round's memory is both stacks: the factors of the worker at position p are
// rows [p * K, p * K + K). They have workers * K * (M + N) floats. Two rounds
// are in memory at once, and once an epoch has ended, a third (PeerRounds).
class FactorExchange final : public Exchange {
 public:
  // Both parameters: not owned; must outlive this.
  FactorExchange(WorkerLayer& layer, const RoundLedger& ledger);

  void Begin(Outbox& out) override { PlaceOwn(out); }
  void Contribute(Outbox& out) override;
  void Gather(Outbox&) override {}  // The product waits for it, no frame does.
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override;
  bool OnFrame(const FrameHeader& header, Outbox& out) override;
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
  // Rows of a stack that belong to the worker at `position`.
  Buffer Rows(const Round& round, int position, uint8_t matrix) const;
  // Calls `each` for the frames that carry the factors of one worker.
  template <typename Each>
  void CutFactors(const Round& round, int position, Each each) const;
  // Sends all factors of `round`, to a worker that recovers it.
  void SendMemory(const Round& round, PeerId to, Outbox& out) const;
  // Appends the product over all stacked rows. Returns the mean gradient.
  // Returns an empty buffer if the caller runs the optimizer: the mean is then
  // in the memory that the caller gave.
  Buffer MultiplyAll(const Round& round, Outbox& out);

  WorkerLayer& layer_;               // The layer; not owned.
  const RoundLedger& ledger_;        // The layer's rounds; not owned.
  const int64_t frames_per_worker_;  // Number of frames of one contribution.
  PeerRounds rounds_;                // Memory of the open rounds.
};

}  // namespace nereus
