#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/driver/compute.h"
#include "common/plan/layer_spec.h"
#include "worker/client/host_client.h"
#include "worker/public/client.h"

namespace nereus {

// Returns a model of a convolution with values for several frames, and of two
// fully connected layers.
std::vector<LayerSpec> SmallModel();

// A worker with made-up gradients, on the real client. The gradients follow
// from the worker's rank and the step. Tests drive the worker step by step, or
// let it train to the end, and read its parameters.
class ToyWorker {
 public:
  explicit ToyWorker(std::vector<LayerSpec> layers);

  // Joins the job.
  absl::Status Connect(const ClientOptions& options);
  // Does the next step. Errors: kInternal, the step's number is not `step`.
  absl::Status Step(int64_t step);
  // Does the next step and stores the layers' schemes. Returns its number.
  absl::StatusOr<int64_t> NextStep();
  // Joins the job, does the steps 0 to `steps` - 1, and leaves the job.
  absl::Status Train(const ClientOptions& options, int64_t steps);

  // Trains like Train, but waits for each layer in the forward pass of the next
  // step. Does not wait for the last step. REQUIRES: the job updates the
  // parameters (JobTraits::updates_parameters is false).
  absl::Status TrainLayerByLayer(const ClientOptions& options, int64_t steps);

  // Lets `compute` multiply the factors of all workers.
  // Call it before Connect.
  void set_compute(std::shared_ptr<Compute> compute) {
    compute_ = std::move(compute);
  }
  // Puts `value` into the gradient of `layer` that this worker pushes in
  // `step`; if the layer has factors, into both factors.
  void Poison(int layer, int64_t step,
              float value = std::numeric_limits<float>::quiet_NaN()) {
    poisoned_ = {layer, step};
    poison_ = value;
  }
  // Changes one parameter of `layer`, so that this replica differs from those
  // of the other workers.
  void Spoil(int layer) { parameters_[layer][0] += 1; }
  // Puts an infinity into the gradients if the loss scale of the step is above
  // `scale`, as an overflow would.
  void set_loss_scale_max(float scale) { loss_scale_max_ = scale; }
  // True if the worker pushes the dense gradient of a layer with factors in
  // some steps, which the test chooses by rank (PushesDense).
  void set_pushes_dense(bool pushes_dense) { pushes_dense_ = pushes_dense; }
  // True if a worker with set_pushes_dense pushes dense gradients in a step.
  static bool PushesDense(int rank, int64_t step) {
    return (step + rank) % 3 == 0 || step == 4;
  }
  // Steps of Step, NextStep and Train that the job has skipped.
  const std::vector<int64_t>& skipped() const { return skipped_; }
  // Scheme by which the layer travelled in the last NextStep.
  const std::string& last_scheme(int layer) const { return schemes_[layer]; }

  HostClient* client() { return client_.get(); }
  // Destroys the client without leaving the job.
  void Die() { client_.reset(); }
  const std::vector<std::vector<float>>& parameters() const {
    return parameters_;
  }

 private:
  // Makes the gradient of a layer and pushes it.
  absl::Status Push(int layer, int64_t step);
  // Does a step that has begun: pushes all layers, waits for their results, and
  // updates the parameters if the job does not.
  absl::Status Do(const StepInfo& step);

  const std::vector<LayerSpec> layers_;
  std::shared_ptr<Compute> compute_ = std::make_shared<Compute>();
  std::pair<int, int64_t> poisoned_ = {-1, -1};  // Arguments of Poison.
  float poison_ = 0;
  float loss_scale_max_ = std::numeric_limits<float>::infinity();
  float loss_scale_ = 1.0f;  // Loss scale of the step.
  bool pushes_dense_ = false;
  std::vector<int64_t> skipped_;
  std::vector<std::string> schemes_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<float>> output_gradients_;
  std::vector<std::vector<float>> inputs_;
  // Must be the last member: it uses the memory above.
  std::unique_ptr<HostClient> client_;
};

}  // namespace nereus
