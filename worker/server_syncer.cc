#include "worker/server_syncer.h"

#include <utility>

namespace nereus {

ServerSyncer::ServerSyncer(JobPtr job, int layer, int rank, Buffer parameters)
    : Syncer(std::move(job), layer, rank, std::move(parameters)) {}

absl::Status ServerSyncer::DoPush(int64_t round, Buffer gradient, Outbox& out) {
  Contribute(round, gradient, out);
  results_.Open(round, updates_here() ? parameters_ : gradient);
  return absl::OkStatus();
}

void ServerSyncer::DoPushFactors(int64_t round, FactorBuffers factors,
                                 Outbox& out) {
  Buffer gradient = factors.gradient;
  if (gradient.bytes() == 0) {
    const int64_t bytes =
        spec().parameters * static_cast<int64_t>(sizeof(float));
    if (product_.bytes() == 0) {
      product_ = parameters_.data() == nullptr ? Buffer::SizeOnly(bytes)
                                               : Buffer::Allocate(bytes);
    }
    gradient = product_;
  }
  out.Add(MultiplyFactors{spec().rows, spec().m, spec().n, has_bias(), 1.0f,
                          std::move(factors.output_gradient),
                          std::move(factors.input), gradient});
  Contribute(round, gradient, out);
  results_.Open(round, updates_here() ? parameters_ : gradient);
}

}  // namespace nereus
