#pragma once

#include "worker/machine/syncer.h"

namespace nereus {

// Scheme kServer: the gradient goes to the shards, chunk by chunk, and the
// round's outcome comes back into place: the new parameters, or
// (OptimizerPlace::kWorker) the mean gradient over the one that was pushed.
class ServerSyncer final : public Syncer {
 public:
  ServerSyncer(JobPtr job, int layer, int rank, LayerMemory memory);

 private:
  absl::Status Keep(Buffer gradient) override;
  void KeepFactors(FactorBuffers factors, Outbox& out) override;
  Buffer kept() const override { return gradient_; }
  void Contribute(Outbox& out) override;
  void BeginGather(Outbox& out) override { AskShards(next_round(), out); }
  void Release() override { gradient_ = Buffer(); }
  void EnterEpoch(Outbox&) override {}
  void Settle(Outbox&) override {}
  Buffer state() const override { return memory_.state; }

  // The same of a sparse layer: of each chunk the blocks that travel, or, where
  // there are none, a frame without payload.
  void ContributeBlocks(Outbox& out) const;

  Buffer gradient_;  // What was pushed.
  Buffer product_;   // The gradient, where the caller gave factors and no room
                     // for it.
};

}  // namespace nereus
