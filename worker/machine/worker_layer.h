#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "common/tensor/device_layer.h"
#include "worker/machine/result_assembly.h"
#include "worker/machine/sparse_gradient.h"

namespace nereus {

// Memory of one layer that the caller lends to the worker's machine.
struct LayerMemory {
  Buffer parameters;  // The whole layer, float32.
  // State of the caller's own optimizer, which a worker that joins needs
  // besides the parameters: arrays one after the other, each with as many
  // values as the layer. Empty if the caller's optimizer has no state, or the
  // caller runs none.
  Buffer state;
  // True if the caller's optimizer wants the mean gradient in the memory of the
  // pushed gradient. If false, an exchange that makes the mean in other memory
  // leaves it there until the next push (LayerDone::mean).
  bool means_in_place = true;
  // True if, in a sparse job, the machine keeps the residual. If false, the
  // driver keeps the residual on the device on which it carries out
  // SplitGradient.
  bool keeps_residual = true;
  // True if the driver multiplies factors on the processor. The workers of a
  // host share the processor, so they can share a product, too. False if the
  // driver of each worker multiplies on a device. Equal on all workers
  // (JoinRequest::products).
  bool multiplies_on_host = true;
  // Device that has the layer; null: the layer is in host memory alone.
  std::shared_ptr<DeviceLayer> device = nullptr;
};

// Factors that the caller pushes for one round of a fully connected layer:
// float32, lent by the caller until the round is done.
struct FactorBuffers {
  Buffer output_gradient;  // K x M
  Buffer input;            // K x N
  Buffer gradient;         // {parameters}: for product or mean; may be empty.
  float scale = 1.0f;      // Factor that output_gradient is multiplied by.
};

// State of one layer that the parts of its Syncer share: the job, the memory
// and the contribution to the open round. The Syncer writes the fields, and the
// parts read them. One part writes a field: FactorExchange sets `product`,
// through PlaceForGradient.
struct WorkerLayer {
  // `layer`: index in job->layers. Allocates the optimizer's state where this
  // worker runs the job's optimizer.
  WorkerLayer(JobPtr job, int layer, int rank, LayerMemory memory);

  const LayerSpec& spec() const { return job->layers[index]; }
  const Route& route() const { return job->routes[index]; }
  // True if a bias follows the matrix of a fully connected layer.
  bool has_bias() const { return spec().parameters > spec().m * spec().n; }
  // True if the caller's own optimizer updates the parameters. Otherwise the
  // job's optimizer does, on the shards or in this machine.
  bool caller_updates() const {
    return job->options.optimizer_place == OptimizerPlace::kWorker;
  }
  // This worker's position in the epoch; -1 if the worker has left.
  int position() const { return job->PositionOf(rank); }
  // Header of a frame of this layer from this worker.
  FrameHeader Header(FrameKind kind, int64_t chunk, int64_t round) const;

  // Sends `values`, the whole layer, to the shards that own its chunks. Leaves
  // out chunks of which `results` has all frames of `round` already.
  void SendToShards(int64_t round, const Buffer& values,
                    const ResultAssembly& results, Outbox& out) const;
  // Asks the shards for the chunks of `round` that `results` lacks.
  void AskShards(int64_t round, const ResultAssembly& results,
                 Outbox& out) const;

  // Returns zeroed memory for values of the layer.
  Buffer Allocate(int64_t bytes) const;

  // Returns `given`, or memory for one gradient if `given` is empty.
  Buffer PlaceForGradient(Buffer given);
  // Appends the product of `factors`, and returns the memory of the gradient
  // that it makes.
  Buffer Multiply(FactorBuffers factors, Outbox& out);

  JobPtr job;                // The job in the current epoch.
  const int index;           // Index in job->layers.
  const int rank;            // This worker's rank.
  const LayerMemory memory;  // The caller's memory.
  // State of the optimizer that runs on this worker: the caller's optimizer or,
  // for a worker-owned layer, the job's. If the shards run the optimizer, this
  // is memory.state, which is then not used.
  const Buffer state;

  // Contribution to the open round, lent by the caller until the round is done.
  // With scheme kFactor either `factors` are set, or `gradient` and
  // factors.gradient; otherwise `gradient`.
  Buffer gradient;
  FactorBuffers factors;
  // Memory for the product of factors, where the caller gave no memory for the
  // gradient.
  Buffer product;
  // State of the layer in a sparse job.
  std::optional<SparseGradient> sparse;
};

// Returns the error that refuses a frame of another scheme than the layer's.
absl::Status RefuseScheme(const WorkerLayer& layer, const FrameHeader& header);

}  // namespace nereus
