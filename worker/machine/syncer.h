#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "worker/machine/exchange.h"
#include "worker/machine/layer_transfer.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/sample_schedule.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Synchronises one layer on one worker (the syncer of Poseidon, section 4): it
// takes the contribution to a round when backward has produced it, and appends
// LayerDone when the result is in place.
//
//   fetching --first values have come--> idle --Push--> open
//                                          ^             |
//                                          '-round done--'
//
// The Syncer leads its parts through the rounds: RoundLedger knows how far the
// layer is, Exchange carries out the layer's scheme, and LayerTransfer moves
// the layer between rounds. The Syncer alone changes the ledger. In a new
// epoch, the Syncer asks again for first values that are missing. If the Syncer
// had sent the contribution to the open round, it sends the contribution again.
//
// Pure. The WorkerMachine owns the Syncer and is its only caller. It passes on
// only frames that CheckFrame has accepted.
class Syncer {
 public:
  // `layer`: index in job->layers. `ledger`: the layer's. `samples`: decides of
  // which rounds the layer is sampled. Neither is owned; both must outlive
  // this.
  Syncer(JobPtr job, int layer, int rank, LayerMemory memory,
         RoundLedger* ledger, SampleSchedule* samples);

  // Not copyable, because the parts refer to each other.
  Syncer(const Syncer&) = delete;
  Syncer& operator=(const Syncer&) = delete;

  // Asks for the layer's first values: the machine may write the layer's memory
  // from now on. The first worker of a new job sends its values to the shards.
  void Start(Outbox& out);

  // Continues the work of `before`, the layer's syncer under the last plan,
  // which had another route. Called instead of Start.
  void Adopt(const Syncer& before, Outbox& out);
  // Notes that the caller begins a step. In the first step after Adopt, fetches
  // the layer from the shards, unless the caller runs the optimizer.
  void BeginStep(Outbox& out);

  // Take the caller's contribution to `round`; only Send sends it. `mean`:
  // memory for the mean of a layer by factors; empty: if the caller runs the
  // optimizer, that of `gradient`, otherwise the layer's own.
  // Errors: kInvalidArgument, the round does not follow the last round that is
  // done.
  absl::Status Push(int64_t round, Buffer gradient, Buffer mean, Outbox& out);
  absl::Status PushFactors(int64_t round, FactorBuffers factors, Outbox& out);
  // Sends the contribution, if it is unsent. In a sparse job, `choice` says
  // which blocks travel, and Send adds the norms of the layer's blocks to
  // `norms`, from which the servers make the next choice
  // (SparseGradient::Begin).
  void Send(Outbox& out, const BlockChoice& choice = nullptr,
            const Buffer& norms = Buffer());
  // Notes that the caller has done its last step, and its last update.
  void Leave(Outbox& out) { transfer_.Leave(out); }
  // Sends the layer to the shards, if workers own it. `round`: the last round
  // of the job, after which all workers have left.
  void SaveLast(int64_t round, Outbox& out) const {
    transfer_.SaveLast(round, out);
  }

  // Returns where a frame of this layer lands. Errors: kInvalidArgument, the
  // frame does not fit the state of the layer.
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const;
  // Takes a frame that OnHeader accepted.
  void OnFrame(const Frame& frame, Outbox& out);
  // Notes that the worker knows another verdict, with NanPolicy::kSkip.
  void OnVerdict(Outbox& out);
  // Enters the job's next epoch, in which the layer has the same route. An
  // unsent contribution stays unsent.
  void OnEpoch(JobPtr job, Outbox& out);

  const LayerMemory& memory() const { return layer_.memory; }
  const RoundLedger& ledger() const { return ledger_; }
  int64_t done_round() const { return ledger_.done_round(); }
  int contributors() const { return ledger_.contributors(); }
  bool fetching() const { return ledger_.fetching(); }

  // Names what the layer waits for, for messages: "shard 1 (chunk 3)", "worker
  // 2". Empty if it waits for no other process.
  std::string Missing() const;

  // State of a sparse layer, for tests; nullptr if the layer is not sparse.
  const SparseGradient* sparse() const {
    return layer_.sparse.has_value() ? &*layer_.sparse : nullptr;
  }

 private:
  // Begins the round of a contribution that layer_ has.
  void OnPushed(int64_t round, Outbox& out);
  // Lets the exchange send the contribution, which may end the round.
  void Contribute(Outbox& out);
  // Ends the open round, if the exchange says that nothing of it is missing.
  void FinishIfComplete(Outbox& out);
  // Does what follows a done round or a completed fetch: for example, releases
  // the contribution, reports the round and serves workers that join.
  void OnDone(Outbox& out);

  WorkerLayer layer_;                   // The layer and its memory.
  RoundLedger& ledger_;                 // The layer's rounds; not owned.
  ResultAssembly results_;              // Values from shards and the donor.
  LayerTransfer transfer_;              // Moves the layer between rounds.
  SampleSchedule& samples_;             // Not owned.
  std::unique_ptr<Exchange> exchange_;  // Carries out the rounds.
  bool is_started_ = false;  // True if the machine may write the memory.
  bool is_stale_ = false;    // True if BeginStep must fetch the layer.
};

}  // namespace nereus
