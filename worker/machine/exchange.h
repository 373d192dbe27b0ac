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

// Way in which one layer's contributions become its next parameters, or the
// mean gradient for the caller's optimizer: by the servers, by factors, or
// around a ring. An exchange sees one round after the other:
//
//   Begin -> Contribute -> frames arrive -> Finish
//                 ^              |
//                 '-- OnEpoch ---'   the round is done again in the new epoch
//
// With Overlap::kDecoupled the second half of a round waits for Gather. The
// round's contribution is in the WorkerLayer, its state in the RoundLedger.
// Pure; the layer's Syncer owns the exchange and is its only caller. It calls
// Finish after every call that may complete a round. An exchange reads the
// ledger and never changes it: a round that it ended by itself would not be
// reported, saved or given to joining workers.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The caller has pushed the contribution to the next round.
  virtual void Begin(Outbox& out) = 0;
  // Sends the contribution to the open round: for the first time, or again in a
  // new epoch. If the result is requested by now (RoundLedger::is_requested),
  // asks for it as well.
  virtual void Contribute(Outbox& out) = 0;
  // Asks for the result of the open round, whose contribution is sent.
  // REQUIRES: RoundLedger::is_requested.
  virtual void Gather(Outbox& out) = 0;

  // Returns where a frame of this layer lands. Errors: kInvalidArgument, the
  // frame does not belong to this exchange or to its open rounds.
  virtual absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const = 0;
  // Takes a frame that OnHeader accepted. Returns true if the frame shows that
  // another worker has asked for the result, so that this worker must ask as
  // well.
  virtual bool OnFrame(const Frame& frame, Outbox& out) = 0;
  // A frame of the open round's result has landed (ResultAssembly).
  virtual void OnResult(const FrameHeader&, Outbox&) {}

  // Ends the open round if nothing of it is missing: appends the update, if the
  // optimizer runs on this worker, and returns the outcome. Otherwise nullopt.
  virtual std::optional<RoundResult> Finish(Outbox& out) = 0;

  // Enters the job's next epoch: frames of the last epoch no longer count.
  virtual void OnEpoch(Outbox& out) = 0;

  // Names what the open round waits for, for messages: "worker 2".
  virtual std::string Missing() const = 0;
};

}  // namespace nereus
