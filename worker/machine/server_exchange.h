#pragma once

#include <optional>
#include <string>

#include "worker/machine/exchange.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/round_ledger.h"
#include "worker/machine/worker_layer.h"

namespace nereus {

// Scheme kServer: the gradient goes to the shards, chunk by chunk, and the
// result comes back. The result is the new parameters. Where the caller runs
// the optimizer, it is the mean gradient, which replaces the pushed gradient in
// its memory.
class ServerExchange final : public Exchange {
 public:
  // All parameters: not owned; must outlive this.
  ServerExchange(const WorkerLayer& layer, const RoundLedger& ledger,
                 ResultAssembly& results)
      : layer_(layer), ledger_(ledger), results_(results) {}

  void Begin(Outbox&) override {}
  void Contribute(Outbox& out) override;
  void Gather(Outbox& out) override;
  // Refuses all frames: results are the ResultAssembly's, which the Syncer
  // asks.
  absl::StatusOr<Landing> OnHeader(const FrameHeader& header) const override {
    return RefuseScheme(layer_, header);
  }
  bool OnFrame(const FrameHeader&, Outbox&) override { return false; }
  std::optional<RoundResult> Finish(Outbox& out) override;
  void OnEpoch(Outbox&) override {}
  std::string Missing() const override { return results_.Missing(); }

 private:
  // Sends a sparse contribution.
  void ContributeBlocks(Outbox& out) const;

  const WorkerLayer& layer_;   // The layer; not owned.
  const RoundLedger& ledger_;  // The layer's rounds; not owned.
  ResultAssembly& results_;    // Assembles the round's result; not owned.
};

}  // namespace nereus
