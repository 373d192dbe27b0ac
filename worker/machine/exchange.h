#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/protocol/machine.h"

namespace nereus {

// Outcome of a round that is done on this worker.
struct RoundResult {
  int contributors = 0;    // Number of contributions in the round.
  Buffer mean = Buffer();  // See LayerDone::mean.
};

// Part of one worker in the rounds of one layer, by one scheme: by the servers,
// by factors, around a ring, or directly. A round turns the contributions into
// the layer's next parameters, or into the mean gradient for the caller's
// optimizer. An exchange carries out one round after the other:
//
//   Begin -> Contribute -> frames arrive -> Finish
//                 ^              |
//                 '-- OnEpoch ---'   the round is done again in the new epoch
//
// The worker's contribution is in the WorkerLayer, and the state of the round
// in the RoundLedger.
//
// Pure; the layer's Syncer owns the exchange and is its only caller. The Syncer
// calls Finish after every call that may complete a round. An exchange reads
// the ledger and never changes it: the Syncer would not report a round that the
// exchange ended by itself, nor save it or give it to joining workers.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Prepares the contribution to the next round, which the caller has just
  // pushed. Contribute sends it later.
  virtual void Begin(Outbox& out) = 0;
  // Sends the contribution to the open round: for the first time, or again in a
  // new epoch.
  virtual void Contribute(Outbox& out) = 0;

  // Returns where a frame of this layer lands. Errors: kInvalidArgument, the
  // frame does not belong to this exchange or to its open rounds.
  virtual absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const = 0;
  // Takes a frame that OnHeader accepted.
  virtual void OnFrame(const Frame& frame, Outbox& out) = 0;
  // Notes that a frame of a round's result has landed (ResultAssembly).
  virtual void OnResult(const FrameHeader&, Outbox&) {}

  // Advances the open round as far as the frames that have arrived allow: a
  // host's part of a product of factors is computed and sent before the round
  // is complete. Once nothing is missing, ends the round: appends the update,
  // if this worker runs the job's optimizer, and returns the outcome. Before,
  // returns nullopt.
  virtual std::optional<RoundResult> Finish(Outbox& out) = 0;

  // Enters the job's next epoch: frames of the last epoch no longer count.
  virtual void OnEpoch(Outbox& out) = 0;

  // Names what the open round waits for, for messages: "worker 2".
  virtual std::string Missing() const = 0;
};

}  // namespace nereus
