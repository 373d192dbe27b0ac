#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/trainer/device.h"
#include "worker/trainer/layer.h"

namespace nereus {

// A classifier of images: its layers, its parameters and their gradients, on
// one device. All buffers are made once; a step allocates none of its own.
//
//   mlp   fc1 256, relu, fc2 128, relu, fc3 classes
//   cnn   conv1 20 of 5x5, 2x2 pool, relu, conv2 50 of 5x5, 2x2 pool, relu,
//         fc1 500, relu, fc2 classes: LeNet (LeCun et al., "Gradient-based
//         learning applied to document recognition", 1998) with the sizes of
//         Caffe's example
//
// `layer`, everywhere here: an index into specs(), the layers with parameters
// in forward order. Thread-compatible.
class Network {
 public:
  // `model`: "mlp" or "cnn". `batch`: images of a step, and the most of a
  // Predict. Parameters start as zeros.
  //
  // Errors: kInvalidArgument, with the value: unknown model; images, batch or
  // classes out of the range below; images too small for the model. Those of
  // the device's memory.
  static absl::StatusOr<std::unique_ptr<Network>> Create(
      absl::string_view model, const ImageShape& image, int64_t classes,
      int64_t batch, std::shared_ptr<Device> device = MakeCpuDevice());

  const ImageShape& image() const { return image_; }
  int64_t classes() const { return classes_; }
  int64_t batch() const { return batch_; }
  const std::vector<LayerSpec>& specs() const { return specs_; }

  Device& device() const { return *device_; }

  // float32, shape {specs()[layer].parameters}, the device's memory: at the
  // same place as long as the network lives.
  absl::Span<float> parameters(int layer);
  absl::Span<const float> parameters(int layer) const;
  // A copy in the host's.
  std::vector<float> ReadParameters(int layer) const;

  // The same shape. Written by Backward for a layer without factors; for one
  // with them, nothing but the caller writes it.
  absl::Span<float> gradient(int layer);

  // True for a fully connected layer.
  bool has_factors(int layer) const;

  // The factors of such a layer, the device's memory, from Backward's call for
  // it to the next Forward or Predict.
  Factors factors(int layer) const;

  // Weights uniform with variance 1 / N, biases 0, as Caffe's LeNet has them.
  // (Twice that, as He et al. propose for layers with rectifiers, is too much
  // with pools that pick the largest of four: training with a learning rate of
  // 0.05 then diverges.) The same bits on every machine.
  void Initialize(uint64_t seed);

  // The mean loss of `batch()` images. Both are read before it returns.
  //   images  float32, shape {batch(), image().length()}
  //   labels  {batch()}, each in [0, classes())
  float Forward(absl::Span<const float> images,
                absl::Span<const int32_t> labels);

  // The same; calls `await` for each layer with parameters before it reads
  // them. Returns the first error of `await`, and then computes no further; or
  // the device's.
  absl::StatusOr<float> Forward(
      absl::Span<const float> images, absl::Span<const int32_t> labels,
      absl::FunctionRef<absl::Status(int layer)> await);

  // Computes the gradients of the last Forward's loss, times `loss_scale`, last
  // layer first, and calls `ready` for each layer with parameters the moment
  // its gradient (or its factors) exists and nothing of this step reads its
  // parameters any more: they may be overwritten from then on. On a GPU, that
  // is when all is done that is queued by then. Returns the first error of
  // `ready`, and then computes no further; or the device's.
  absl::Status Backward(absl::FunctionRef<absl::Status(int layer)> ready,
                        float loss_scale = 1.0f);

  // Writes the most likely class of each of `classes.size()` images, at most
  // batch(). Overwrites what Backward needs of the last Forward.
  void Predict(absl::Span<const float> images, absl::Span<int32_t> classes);

 private:
  struct Stage {
    std::unique_ptr<Layer> layer;
    bool relu = false;  // Follows the layer, in place.
    int index = -1;     // In specs_, or -1 without parameters.
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

  // Appends `layer`; `name` is empty for one without parameters.
  absl::Status Add(const std::string& name, std::unique_ptr<Layer> layer,
                   bool relu);
  absl::Status AddMlp();
  absl::Status AddCnn();
  absl::Status Run(int64_t images, absl::Span<const float> input,
                   absl::FunctionRef<absl::Status(int layer)> await);

  const Stage& stage(int layer) const {
    return stages_[stage_of_layer_[layer]];
  }
  Stage& stage(int layer) { return stages_[stage_of_layer_[layer]]; }

  const ImageShape image_;
  const int64_t classes_;
  const int64_t batch_;
  const std::shared_ptr<Device> device_;
  std::vector<Stage> stages_;
  std::vector<int> stage_of_layer_;
  std::vector<LayerSpec> specs_;
  FloatArray images_;  // Of the last Forward.
};

// The largest image, channels counted, and the largest batch, in elements of
// all its images: beyond, the largest buffers would need tens of gigabytes.
inline constexpr int64_t kImageLengthMax = int64_t{1} << 16;
inline constexpr int64_t kBatchLengthMax = int64_t{1} << 22;
inline constexpr int64_t kClassesMax = 1000;

}  // namespace nereus
