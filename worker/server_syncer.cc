#include "worker/server_syncer.h"

#include <utility>

namespace nereus {

ServerSyncer::ServerSyncer(JobPtr job, int layer, int rank, LayerMemory memory)
    : Syncer(std::move(job), layer, rank, std::move(memory)) {}

absl::Status ServerSyncer::Keep(Buffer gradient) {
  gradient_ = std::move(gradient);
  results_.Expect(next_round(), updates_here() ? memory_.parameters : gradient_,
                  Buffer(), std::nullopt);
  return absl::OkStatus();
}

void ServerSyncer::KeepFactors(FactorBuffers factors, Outbox& out) {
  Keep(Multiply(std::move(factors), product_, out)).IgnoreError();
}

void ServerSyncer::Contribute(Outbox& out) {
  SendToShards(next_round(), gradient_, out);
}

}  // namespace nereus
