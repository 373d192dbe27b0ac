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
  // besides the parameters: arrays of as many values as the layer has, one
  // after the other. Empty if the caller's optimizer has no state, or does not
  // run.
  Buffer state;
  // True if the caller's optimizer wants the mean gradient in the place of the
  // gradient that was pushed. Otherwise an exchange that makes the mean
  // elsewhere leaves it there until the next push (LayerDone::mean).
  bool means_in_place = true;
  // True if, in a sparse job, the machine keeps the residual. Otherwise the
  // driver keeps the residual where it carries out SplitGradient.
  bool keeps_residual = true;
  // True if the driver multiplies factors on the processor, which the workers
  // of a host share, and so can share a product. False if each worker has a
  // device for it. Equal on all workers (JoinRequest::products).
  bool multiplies_on_host = true;
  // Device that has the layer; null: the layer is in host memory alone.
  std::shared_ptr<DeviceLayer> device = nullptr;
};

// Factors that the caller pushes for one round of a fully connected layer:
// float32, lent by the caller until the round is done.
struct FactorBuffers {
  Buffer output_gradient;  // K x M
  Buffer input;            // K x N
  Buffer gradient;         // {parameters}: for the mean gradient; may be empty.
  float scale = 1.0f;      // Factor that output_gradient is multiplied by.
};

// State of one layer that the parts of its Syncer share: the job, the memory
// and the open round's contribution. The Syncer writes it, and the parts read
// it; only PlaceForGradient, which FactorExchange calls too, writes `product`.
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
  // out chunks that `results` has all results of `round` for.
  void SendToShards(int64_t round, const Buffer& values,
                    const ResultAssembly& results, Outbox& out) const;
  // Asks the shards for the chunks of `round` that `results` lacks.
  void AskShards(int64_t round, const ResultAssembly& results,
                 Outbox& out) const;

  // Returns zeroed memory for values of the layer.
  Buffer Allocate(int64_t bytes) const;

  // Returns `given`, or memory for one gradient if `given` is empty.
  Buffer PlaceForGradient(Buffer given);
  // Returns the gradient that `factors` stand for, and appends the product that
  // makes it.
  Buffer Multiply(FactorBuffers factors, Outbox& out);

  JobPtr job;                // The job in the current epoch.
  const int index;           // Index in job->layers.
  const int rank;            // This worker's rank.
  const LayerMemory memory;  // The caller's memory.
  // State of the optimizer that runs on this worker: the caller's, or the job's
  // for a worker-owned layer. Empty if the shards run the optimizer.
  const Buffer state;

  // Contribution to the open round, lent by the caller until the round is done.
  // With scheme kFactor `factors` are set, otherwise `gradient`.
  Buffer gradient;
  FactorBuffers factors;
  // Gradient that Multiply or the mean is written to, where the caller gave
  // factors and no memory for the gradient.
  Buffer product;
  // State of the layer in a sparse job.
  std::optional<SparseGradient> sparse;
};

// Returns the error that refuses a frame of another scheme than the layer's.
absl::Status RefuseScheme(const WorkerLayer& layer, const FrameHeader& header);

}  // namespace nereus
