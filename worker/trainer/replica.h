#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/public/client.h"
#include "worker/public/gpu_client.h"
#include "worker/trainer/device.h"
#include "worker/trainer/network.h"

namespace nereus {

// A worker's network and its part in a job, wherever both live: what Train
// needs of them. Its calls are Client's, whose errors they have.
class Replica {
 public:
  virtual ~Replica() = default;

  virtual Network& network() = 0;
  virtual const Client& client() const = 0;

  virtual absl::StatusOr<StepInfo> BeginStep() = 0;

  // Pushes what the network's Backward has made of the layer: its gradient, or
  // its factors.
  virtual absl::Status Push(int layer, int64_t step) = 0;

  virtual absl::Status WaitForward(int layer) = 0;

  // With `optimizer=worker`, after the Wait: the optimizer's step `step`.
  virtual absl::Status Update(int layer, int64_t step) = 0;

  virtual absl::Status Leave() = 0;

  // On a GPU, if JoinWithGpu was told to keep one (GpuClient::Timeline).
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const {
    return absl::FailedPreconditionError("a timeline is kept of GPUs alone");
  }
};

// Of a worker that updates the parameters itself, by layer. Its bytes count for
// nothing otherwise.
using OptimizerState = std::vector<std::vector<float>>;

// The layers of `network`, on a CPU, for a client, and zeroed state for any
// optimizer; they point into both.
std::vector<LayerBinding> BindLayers(Network* network, OptimizerState* state);

// A network on a CPU. `client` has BindLayers(network, state) and is as Connect
// returned it. All three must outlive it.
std::unique_ptr<Replica> MakeHostReplica(Network* network,
                                         OptimizerState* state, Client* client);

}  // namespace nereus
