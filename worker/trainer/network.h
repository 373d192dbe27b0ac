#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/trainer/device.h"
#include "worker/trainer/layer.h"

namespace nereus {

// Classifier of images: its layers, their parameters and gradients, on one
// device. All buffers are made once; a step allocates none.
//
//   mlp   fc1 256, relu, fc2 128, relu, fc3 classes
//   cnn   conv1 20 of 5x5, 2x2 pool, relu, conv2 50 of 5x5, 2x2 pool, relu,
//         fc1 500, relu, fc2 classes: LeNet (LeCun et al., "Gradient-based
//         learning applied to document recognition", 1998) with the sizes of
//         Caffe's example
//
// An argument `layer` is an index into specs(), which has the layers with
// parameters in forward order. Thread-compatible.
class Network {
 public:
  // Makes a network with all parameters zero. `model`: "mlp" or "cnn". `batch`:
  // number of images of a step, and the largest number of images of a Predict.
  //
  // Errors: kInvalidArgument, with the value: unknown model; images, batch or
  // classes out of range (see the limits below); images too small for the
  // model. Also those of Device::Allocate.
  static absl::StatusOr<std::unique_ptr<Network>> Create(
      absl::string_view model, const ImageShape& image, int64_t classes,
      int64_t batch, std::shared_ptr<Device> device = MakeCpuDevice());

  const ImageShape& image() const { return image_; }
  int64_t classes() const { return classes_; }
  int64_t batch() const { return batch_; }
  // Layers with parameters, in forward order.
  const std::vector<LayerSpec>& specs() const { return specs_; }

  Device& device() const { return *device_; }

  // Returns the parameters of a layer: float32, shape
  // {specs()[layer].parameters}, device memory. The memory does not move as
  // long as the network lives.
  absl::Span<float> parameters(int layer) const;
  // Returns a copy of the parameters in host memory.
  std::vector<float> ReadParameters(int layer) const;

  // Returns the memory of the gradient, with the shape of the parameters.
  // Backward writes the gradient of a layer without factors. It does not write
  // that of a layer with factors; a client can put the mean gradient there.
  absl::Span<float> gradient(int layer) const;

  // True if the layer is fully connected.
  bool has_factors(int layer) const;

  // Returns the factors of a fully connected layer, in device memory. They are
  // valid from the moment at which Backward calls `ready` for the layer, to the
  // next Forward or Predict.
  Factors factors(int layer) const;

  // Sets the biases to 0, and the weights to random values with a uniform
  // distribution and variance 1 / N (N: inputs of one output), as in Caffe's
  // LeNet. (He et al. propose twice that variance for layers with rectifiers.
  // That is too much with pools that pick the largest of four values: training
  // with a learning rate of 0.05 then diverges.) The same seed gives the same
  // bits on every computer.
  void Initialize(uint64_t seed);

  // Returns the mean loss of `batch()` images. Does not use the arguments after
  // it returns. An error of the device ends the program; the other Forward
  // returns such an error.
  //
  //   images  float32, shape {batch(), image().length()}, host memory
  //   labels  {batch()}, each in [0, classes())
  float Forward(absl::Span<const float> images,
                absl::Span<const int32_t> labels);

  // Computes the same loss, and calls `await` for each layer with parameters
  // before it reads the layer's parameters. If `await` fails, stops and returns
  // that error. Otherwise returns the loss, or the device's error.
  absl::StatusOr<float> Forward(
      absl::Span<const float> images, absl::Span<const int32_t> labels,
      absl::FunctionRef<absl::Status(int layer)> await);

  // Computes the gradients of the last Forward's loss, times `loss_scale`, last
  // layer first. REQUIRES: called once after each Forward.
  //
  // Calls `ready` for each layer with parameters as soon as its gradient (or
  // its factors) exists and this step does not read its parameters again. After
  // this call of `ready`, the parameters may be overwritten; on a GPU, only by
  // work that waits for all work queued before the call. If `ready` fails,
  // stops and returns that error. Otherwise returns the device's error, or OK.
  absl::Status Backward(absl::FunctionRef<absl::Status(int layer)> ready,
                        float loss_scale = 1.0f);

  // Writes the most likely class of each of `classes.size()` images, at most
  // batch(). Overwrites values of the last Forward that Backward needs.
  void Predict(absl::Span<const float> images, absl::Span<int32_t> classes);

 private:
  // Layer with its buffers.
  struct Stage {
    std::unique_ptr<Layer> layer;
    bool relu = false;  // True if a relu follows the layer, in place.
    int index = -1;     // Index in specs_; -1: no parameters.
    FloatArray output;
    FloatArray output_gradient;
    FloatArray parameters;
    FloatArray gradient;
  };

  Network(const ImageShape& image, int64_t classes, int64_t batch,
          std::shared_ptr<Device> device)
      : image_(image),
        classes_(classes),
        batch_(batch),
        device_(std::move(device)) {}

  // Appends a stage. `name`: empty for a layer without parameters.
  absl::Status Add(const std::string& name, std::unique_ptr<Layer> layer,
                   bool relu);
  // Append a layer behind the last one; with `relu`, a relu follows the layer.
  absl::Status AddFullyConnected(const std::string& name, int64_t outputs,
                                 bool relu);
  absl::Status AddConvolutionAndPool(const std::string& name, int64_t outputs);
  // Append all stages of a model.
  absl::Status AddMlp();
  absl::Status AddCnn();
  // Computes the forward pass of `images` images up to the logits.
  absl::Status Run(int64_t images, absl::Span<const float> input,
                   absl::FunctionRef<absl::Status(int layer)> await);

  // Copies the output of the last stage to logits_.
  void ReadLogits();

  const Stage& stage(int layer) const {
    return stages_[stage_of_layer_[layer]];
  }

  const ImageShape image_;
  const int64_t classes_;
  const int64_t batch_;
  const std::shared_ptr<Device> device_;
  std::vector<Stage> stages_;        // In forward order.
  std::vector<int> stage_of_layer_;  // Index in stages_, by layer.
  std::vector<LayerSpec> specs_;     // See specs().
  FloatArray images_;                // Images of the last Forward or Predict.
  // Output of the last stage, on the host. After a Forward, the gradient of the
  // loss with respect to this output.
  std::vector<float> logits_;
};

// Limits of an image (number of values, with channels), of a batch (number of
// values of all its images), and of classes. Beyond these limits, the largest
// buffers would need tens of gigabytes.
inline constexpr int64_t kImageLengthMax = int64_t{1} << 16;
inline constexpr int64_t kBatchLengthMax = int64_t{1} << 22;
inline constexpr int64_t kClassesMax = 1000;

}  // namespace nereus
