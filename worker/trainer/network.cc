#include "worker/trainer/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/logging.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "worker/trainer/layers.h"

namespace nereus {
namespace {

constexpr int64_t kCnnKernel = 5;

// Smallest side of an image that two 5 x 5 convolutions with their pools reduce
// to at least one pixel: 16, 12, 6, 2, 1.
constexpr int64_t kCnnSideMin = 16;

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low,
                        int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", value, ", must be in [", low, ", ",
                              high, "]");
}

absl::Status CheckSizes(absl::string_view model, const ImageShape& image,
                        int64_t classes, int64_t batch) {
  const int64_t side_min = model == "cnn" ? kCnnSideMin : 1;
  // Checks the sides first, so that their products below do not overflow.
  NEREUS_TRY(CheckRange(absl::StrCat("image height for ", model), image.height,
                        side_min, kImageLengthMax));
  NEREUS_TRY(CheckRange(absl::StrCat("image width for ", model), image.width,
                        side_min, kImageLengthMax));
  NEREUS_TRY(
      CheckRange("channels of an image", image.channels, 1, kImageLengthMax));
  NEREUS_TRY(
      CheckRange("elements of an image", image.length(), 1, kImageLengthMax));
  NEREUS_TRY(CheckRange("classes", classes, 1, kClassesMax));
  return CheckRange(
      absl::StrCat("batch of ", image.height, "x", image.width, " images"),
      batch, 1, kBatchLengthMax / image.length());
}

// Awaits no layer, for a forward pass outside of a job.
absl::Status AwaitNothing(int) { return absl::OkStatus(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(
    absl::string_view model, const ImageShape& image, int64_t classes,
    int64_t batch, std::shared_ptr<Device> device) {
  if (model != "mlp" && model != "cnn") {
    return InvalidArgumentError("unknown model \"", model,
                                "\", must be mlp or cnn");
  }
  NEREUS_TRY(CheckSizes(model, image, classes, batch));
  std::unique_ptr<Network> network(
      new Network(image, classes, batch, std::move(device)));
  network->images_ =
      NEREUS_TRY(network->device_->Allocate(batch * image.length()));
  // Allocated here, so that a step allocates nothing.
  network->logits_.resize(batch * classes);
  NEREUS_TRY(model == "mlp" ? network->AddMlp() : network->AddCnn());
  return network;
}

absl::Status Network::AddFullyConnected(const std::string& name,
                                        int64_t outputs, bool relu) {
  const ImageShape input =
      stages_.empty() ? image_ : stages_.back().layer->output();
  return Add(name,
             std::make_unique<FullyConnected>(device_.get(), input, outputs),
             relu);
}

absl::Status Network::AddConvolutionAndPool(const std::string& name,
                                            int64_t outputs) {
  ConvolutionShape shape;
  shape.input = stages_.empty() ? image_ : stages_.back().layer->output();
  shape.output_channels = outputs;
  shape.kernel = kCnnKernel;
  auto convolution =
      NEREUS_TRY(Convolution::Create(device_.get(), shape, batch_));
  NEREUS_TRY(Add(name, std::move(convolution), false));
  // A relu after the pool gives the values of a relu before it, and has a
  // quarter of the elements to treat.
  return Add("", std::make_unique<MaxPooling>(device_.get(), shape.output()),
             true);
}

absl::Status Network::AddMlp() {
  NEREUS_TRY(AddFullyConnected("fc1", 256, /*relu=*/true));
  NEREUS_TRY(AddFullyConnected("fc2", 128, /*relu=*/true));
  return AddFullyConnected("fc3", classes_, /*relu=*/false);
}

absl::Status Network::AddCnn() {
  NEREUS_TRY(AddConvolutionAndPool("conv1", 20));
  NEREUS_TRY(AddConvolutionAndPool("conv2", 50));
  NEREUS_TRY(AddFullyConnected("fc1", 500, /*relu=*/true));
  return AddFullyConnected("fc2", classes_, /*relu=*/false);
}

absl::Status Network::Add(const std::string& name, std::unique_ptr<Layer> layer,
                          bool relu) {
  const auto allocate = [this](int64_t count,
                               FloatArray& array) -> absl::Status {
    array = NEREUS_TRY(device_->Allocate(count));
    return absl::OkStatus();
  };
  Stage stage;
  const int64_t outputs = batch_ * layer->output().length();
  NEREUS_TRY(allocate(outputs, stage.output));
  NEREUS_TRY(allocate(outputs, stage.output_gradient));
  LayerSpec spec = layer->Spec(batch_);
  if (spec.parameters > 0) {
    NEREUS_TRY(allocate(spec.parameters, stage.parameters));
    NEREUS_TRY(allocate(spec.parameters, stage.gradient));
    stage.index = static_cast<int>(specs_.size());
    stage_of_layer_.push_back(static_cast<int>(stages_.size()));
    spec.name = name;
    specs_.push_back(std::move(spec));
  }
  stage.layer = std::move(layer);
  stage.relu = relu;
  stages_.push_back(std::move(stage));
  return absl::OkStatus();
}

absl::Span<float> Network::parameters(int layer) const {
  return stage(layer).parameters.span();
}

std::vector<float> Network::ReadParameters(int layer) const {
  std::vector<float> values(specs_[layer].parameters);
  device_->Read(stage(layer).parameters.data(), absl::MakeSpan(values));
  return values;
}

absl::Span<float> Network::gradient(int layer) const {
  return stage(layer).gradient.span();
}

bool Network::has_factors(int layer) const {
  return stage(layer).layer->has_factors();
}

Factors Network::factors(int layer) const {
  NEREUS_CHECK(has_factors(layer)) << specs_[layer].name << " has no factors";
  const int index = stage_of_layer_[layer];
  const FloatArray& input = index == 0 ? images_ : stages_[index - 1].output;
  return {stages_[index].output_gradient.span(), input.span()};
}

void Network::Initialize(uint64_t seed) {
  Random random(seed);
  for (size_t i = 0; i < specs_.size(); ++i) {
    // Draws all layers from one generator, in forward order.
    const LayerSpec& spec = specs_[i];
    std::vector<float> parameters(spec.parameters);
    // Uniform values in [-b, b) have the variance b * b / 3.
    const double bound = std::sqrt(3.0 / static_cast<double>(spec.n));
    for (int64_t j = 0; j < spec.m * spec.n; ++j) {
      parameters[j] =
          static_cast<float>(bound * (2.0 * random.Uniform() - 1.0));
    }
    device_->Write(parameters, stage(static_cast<int>(i)).parameters.data());
  }
}

absl::Status Network::Run(int64_t images, absl::Span<const float> input,
                          absl::FunctionRef<absl::Status(int layer)> await) {
  NEREUS_CHECK(std::ssize(input) == images * image_.length())
      << input.size() << " floats for " << images << " images of "
      << image_.length();
  size_t awaited = 0;
  // Awaits all layers up to stage `last`.
  const auto await_to = [&](size_t last) {
    for (; awaited <= last && awaited < stages_.size(); ++awaited) {
      if (stages_[awaited].index < 0) continue;
      NEREUS_TRY(await(stages_[awaited].index));
    }
    return absl::OkStatus();
  };
  // True if the input of stage `i` is a factor of its layer. The client may
  // read that factor until the layer's round is done. So the layer must be
  // awaited before the stage in front of it writes its output.
  const auto is_factor = [this](size_t i) {
    return i < stages_.size() && stages_[i].layer->has_factors();
  };
  if (is_factor(0)) NEREUS_TRY(await_to(0));
  device_->Write(input, images_.data());
  const float* in = images_.data();
  for (size_t i = 0; i < stages_.size(); ++i) {
    // Stage i writes the input of stage i + 1: see is_factor.
    NEREUS_TRY(await_to(is_factor(i + 1) ? i + 1 : i));
    const Stage& stage = stages_[i];
    float* const out = stage.output.data();
    stage.layer->Forward(images, in, stage.parameters.data(), out);
    if (stage.relu) {
      device_->ReluForward(images * stage.layer->output().length(), out);
    }
    in = out;
  }
  return device_->status();
}

float Network::Forward(absl::Span<const float> images,
                       absl::Span<const int32_t> labels) {
  return *Forward(images, labels, AwaitNothing);
}

absl::StatusOr<float> Network::Forward(
    absl::Span<const float> images, absl::Span<const int32_t> labels,
    absl::FunctionRef<absl::Status(int layer)> await) {
  NEREUS_CHECK(std::ssize(labels) == batch_)
      << labels.size() << " labels for a batch of " << batch_;
  for (int32_t label : labels) {
    NEREUS_CHECK(label >= 0 && label < classes_)
        << "label " << label << " of " << classes_ << " classes";
  }
  NEREUS_TRY(Run(batch_, images, await));
  ReadLogits();
  NEREUS_TRY(device_->status());
  return SoftmaxCrossEntropy(batch_, classes_, logits_.data(), labels.data(),
                             logits_.data());
}

void Network::ReadLogits() {
  device_->Read(stages_.back().output.data(), absl::MakeSpan(logits_));
}

absl::Status Network::Backward(absl::FunctionRef<absl::Status(int layer)> ready,
                               float loss_scale) {
  // Scaling here scales all gradients, since all are linear in the gradient of
  // the logits.
  for (float& gradient : logits_) gradient *= loss_scale;
  device_->Write(logits_, stages_.back().output_gradient.data());
  for (int i = static_cast<int>(stages_.size()) - 1; i >= 0; --i) {
    Stage& stage = stages_[i];
    float* output_gradient = stage.output_gradient.data();
    if (stage.relu) {
      device_->ReluBackward(stage.output.count, stage.output.data(),
                            output_gradient);
    }
    // The gradient with respect to the images is not needed.
    const bool first = i == 0;
    stage.layer->Backward(
        batch_, first ? images_.data() : stages_[i - 1].output.data(),
        stage.parameters.data(), output_gradient, stage.gradient.data(),
        first ? nullptr : stages_[i - 1].output_gradient.data());
    if (stage.index < 0) continue;
    NEREUS_TRY(ready(stage.index));
  }
  return device_->status();
}

void Network::Predict(absl::Span<const float> images,
                      absl::Span<int32_t> classes) {
  const int64_t count = std::ssize(classes);
  NEREUS_CHECK(count <= batch_)
      << "predicting " << count << " images with a batch of " << batch_;
  // The device keeps the error: Device::status() returns it.
  Run(count, images, AwaitNothing).IgnoreError();
  ReadLogits();
  const float* row = logits_.data();
  for (int32_t& picked : classes) {
    picked = static_cast<int32_t>(std::max_element(row, row + classes_) - row);
    row += classes_;
  }
}

}  // namespace nereus
