#include "worker/machine/worker_layer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

// The optimizer's state on this worker; see WorkerLayer::state.
Buffer MakeState(const Job& job, int layer, const LayerMemory& memory) {
  const bool runs_here =
      job.options.optimizer_place == OptimizerPlace::kServer &&
      !UsesServers(job.routes[layer].scheme);
  if (!runs_here) return memory.state;
  const int count = OptimizerStateCount(job.options.optimizer.rule);
  const int64_t bytes = FloatBytes(count * job.layers[layer].parameters);
  return memory.device != nullptr
             ? memory.device->MakeState(bytes)
             : Buffer::AllocateLike(memory.parameters, bytes);
}

}  // namespace

WorkerLayer::WorkerLayer(JobPtr the_job, int layer, int the_rank,
                         LayerMemory the_memory)
    : job(std::move(the_job)),
      index(layer),
      rank(the_rank),
      memory(std::move(the_memory)),
      state(MakeState(*job, layer, memory)) {
  if (job->IsSparse(layer)) sparse.emplace(*job, layer, memory.keeps_residual);
}

FrameHeader WorkerLayer::Header(FrameKind kind, int64_t chunk,
                                int64_t round) const {
  return MakeHeader(*job, PeerId::Worker(rank), kind, index, chunk, round);
}

void WorkerLayer::SendToShards(int64_t round, const Buffer& values,
                               const ResultAssembly& results,
                               Outbox& out) const {
  for (const Chunk& chunk : job->placement.layer_chunks(index)) {
    if (results.round() == round && results.Complete(chunk)) continue;
    CutIntoFrames(
        *job, Header(FrameKind::kContribution, chunk.index, round),
        job->GridOf(chunk),
        values.Slice(FloatBytes(chunk.offset), FloatBytes(chunk.length)),
        [&](Frame frame) {
          out.Add(SendFrame{job->ServerOf(chunk), std::move(frame)});
        });
  }
}

void WorkerLayer::AskShards(int64_t round, const ResultAssembly& results,
                            Outbox& out) const {
  for (const Chunk& chunk : job->placement.layer_chunks(index)) {
    if (results.Complete(chunk)) continue;
    out.Add(SendFrame{job->ServerOf(chunk),
                      {Header(FrameKind::kPull, chunk.index, round), {}}});
  }
}

Buffer WorkerLayer::Allocate(int64_t bytes) const {
  return memory.device != nullptr
             ? memory.device->Allocate(bytes)
             : Buffer::AllocateLike(memory.parameters, bytes);
}

Buffer WorkerLayer::PlaceForGradient(Buffer given) {
  if (given.bytes() > 0) return given;
  // Frames of a contribution that was sent twice may still be under way when
  // its round is done. They keep the old memory, and the layer gets new memory.
  if (product.bytes() == 0 || !product.unique()) {
    product = Allocate(FloatBytes(spec().parameters));
  }
  return product;
}

Buffer WorkerLayer::Multiply(FactorBuffers factors, Outbox& out) {
  Buffer gradient = PlaceForGradient(std::move(factors.gradient));
  // Not the rows of the layer: it can have lost its factors in the job, and the
  // caller may push them all the same.
  const int64_t rows = factors.output_gradient.float_count() / spec().m;
  out.Add(MultiplyFactors{rows, spec().m, spec().n, has_bias(), factors.scale,
                          std::move(factors.output_gradient),
                          std::move(factors.input), gradient, /*begin=*/0,
                          /*end=*/spec().m});
  return gradient;
}

absl::Status RefuseScheme(const WorkerLayer& layer, const FrameHeader& header) {
  return RefuseFrame(header, "layer ", layer.spec().name, " goes by scheme ",
                     SchemeName(layer.route().scheme));
}

}  // namespace nereus
