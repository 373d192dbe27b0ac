#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/driver/accelerator.h"
#include "common/plan/layer_spec.h"
#include "worker/client/host_client.h"
#include "worker/public/client.h"

namespace nereus {

// Returns a model of a convolution of several frames and two fully connected
// layers.
std::vector<LayerSpec> SmallModel();

// A worker with made-up gradients, on the real client. Tests drive it step by
// step, or let it train to the end, and look at its parameters.
class ToyWorker {
 public:
  explicit ToyWorker(std::vector<LayerSpec> layers);

  absl::Status Connect(const ClientOptions& options);
  absl::Status Step(int64_t step);
  // Begins and does the next step. Returns its number.
  absl::StatusOr<int64_t> NextStep();
  absl::Status Train(const ClientOptions& options, int64_t steps);

  // Trains, and waits for each layer by itself in the next forward, and for the
  // last step not at all. REQUIRES: the client updates the parameters.
  absl::Status TrainLayerByLayer(const ClientOptions& options, int64_t steps);

  // Lets `accelerator` multiply the factors of all workers, from Connect on.
  void set_accelerator(std::shared_ptr<Accelerator> accelerator) {
    accelerator_ = std::move(accelerator);
  }
  // Puts a NaN into this worker's gradient of `layer` in `step`.
  void Poison(int layer, int64_t step) { poisoned_ = {layer, step}; }
  // Makes this worker's replica of `layer` differ from the others'.
  void Spoil(int layer) { parameters_[layer][0] += 1; }
  // Lets gradients overflow if the loss is multiplied by more than `scale`.
  void set_loss_scale_max(float scale) { loss_scale_max_ = scale; }
  const std::vector<int64_t>& skipped() const { return skipped_; }
  // Scheme by which the layer travelled in the last step.
  const std::string& last_scheme(int layer) const { return schemes_[layer]; }

  HostClient* client() { return client_.get(); }
  void Die() { client_.reset(); }
  const std::vector<std::vector<float>>& parameters() const {
    return parameters_;
  }

 private:
  absl::Status Push(int layer, int64_t step);
  absl::Status Do(const StepInfo& step);

  const std::vector<LayerSpec> layers_;
  std::shared_ptr<Accelerator> accelerator_;
  std::pair<int, int64_t> poisoned_ = {-1, -1};
  float loss_scale_max_ = std::numeric_limits<float>::infinity();
  float loss_scale_ = 1.0f;  // Loss scale of the step.
  std::vector<int64_t> skipped_;
  std::vector<std::string> schemes_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<float>> output_gradients_;
  std::vector<std::vector<float>> inputs_;
  std::unique_ptr<HostClient> client_;  // Last: it uses the memory above.
};

}  // namespace nereus
