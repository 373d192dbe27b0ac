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
  Buffer gradient = factors.gradient;
  if (gradient.bytes() == 0) {
    // Frames of a contribution that was made again may still be on their way
    // when its round is done.
    if (product_.bytes() == 0 || !product_.unique()) {
      product_ = Buffer::AllocateLike(
          memory_.parameters,
          spec().parameters * static_cast<int64_t>(sizeof(float)));
    }
    gradient = product_;
  }
  out.Add(MultiplyFactors{spec().rows, spec().m, spec().n, has_bias(), 1.0f,
                          std::move(factors.output_gradient),
                          std::move(factors.input), gradient});
  Keep(std::move(gradient)).IgnoreError();
}

void ServerSyncer::Contribute(Outbox& out) {
  SendToShards(next_round(), gradient_, out);
}

}  // namespace nereus
