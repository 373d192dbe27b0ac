#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "worker/public/client.h"
#include "worker/public/gpu_client.h"
#include "worker/trainer/device.h"
#include "worker/trainer/network.h"

namespace nereus {

// Network of a worker, on a CPU or a GPU, with its client: the interface that
// Train uses. Errors: those of the Client call of the same name.
class NetworkClient {
 public:
  virtual ~NetworkClient() = default;

  // Network of the worker; the job updates its parameters.
  virtual Network& network() = 0;
  virtual const Client& client() const = 0;

  // Begins the next step.
  virtual absl::StatusOr<StepInfo> BeginStep() = 0;

  // Pushes the result of the network's Backward for the layer: its gradient, or
  // its factors.
  virtual absl::Status Push(int layer, int64_t step) = 0;

  // Waits for the last pushed round of the layer.
  virtual absl::Status WaitForward(int layer) = 0;

  // Runs the optimizer for `step` on the layer, after the Wait, with
  // `optimizer=worker`.
  virtual absl::Status Update(int layer, int64_t step) = 0;

  // Ends the job for all workers.
  virtual absl::Status Abort(absl::string_view reason) = 0;

  // Leave the job.
  virtual absl::Status Leave() = 0;
  virtual absl::Status LeaveEarly() = 0;

  // Returns the timeline of a GPU (GpuClient::Timeline), if JoinWithGpu was
  // called with keep_timeline.
  virtual absl::StatusOr<std::vector<GpuSpan>> Timeline() const {
    return FailedPreconditionError("only a worker on a GPU keeps a timeline");
  }
};

// Optimizer state, by layer. Used only if the worker updates the parameters.
using OptimizerState = std::vector<std::vector<float>>;

// Returns the bindings of the layers of `network`, which is on a CPU, for a
// client. Fills `state` anew with zeros; it gets room for the optimizer with
// the largest state. The bindings point into `network` and `state`.
std::vector<LayerBinding> BindLayers(Network* network, OptimizerState* state);

// Returns a network on a CPU with its client. `client` was connected with
// BindLayers(network, state). All three must outlive the result.
std::unique_ptr<NetworkClient> MakeHostNetworkClient(Network* network,
                                                     OptimizerState* state,
                                                     Client* client);

}  // namespace nereus
