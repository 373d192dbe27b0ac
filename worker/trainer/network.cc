#include "worker/trainer/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/trainer/activation.h"
#include "worker/trainer/convolution.h"
#include "worker/trainer/fully_connected.h"
#include "worker/trainer/loss.h"
#include "worker/trainer/pooling.h"

namespace nereus {
namespace {

constexpr int64_t kCnnKernel = 5;

// The smallest side that two 5 x 5 convolutions with their pools leave
// something of: 16, 12, 6, 2, 1.
constexpr int64_t kCnnSideMin = 16;

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low,
                        int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, ", must be in [", low, ", ", high, "]"));
}

absl::Status CheckSizes(absl::string_view model, const ImageShape& image,
                        int64_t classes, int64_t batch) {
  const int64_t side_min = model == "cnn" ? kCnnSideMin : 1;
  // The sides first: they bound what the lengths below multiply.
  absl::Status status = CheckRange(absl::StrCat("image height for ", model),
                                   image.height, side_min, kImageLengthMax);
  status.Update(CheckRange(absl::StrCat("image width for ", model), image.width,
                           side_min, kImageLengthMax));
  status.Update(
      CheckRange("channels of an image", image.channels, 1, kImageLengthMax));
  if (!status.ok()) return status;
  status.Update(
      CheckRange("elements of an image", image.length(), 1, kImageLengthMax));
  status.Update(CheckRange("classes", classes, 1, kClassesMax));
  if (!status.ok()) return status;
  return CheckRange(
      absl::StrCat("batch of ", image.height, "x", image.width, " images"),
      batch, 1, kBatchLengthMax / image.length());
}

absl::Status AwaitNothing(int) { return absl::OkStatus(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create(
    absl::string_view model, const ImageShape& image, int64_t classes,
    int64_t batch) {
  if (model != "mlp" && model != "cnn") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown model \"", model, "\", must be mlp or cnn"));
  }
  absl::Status status = CheckSizes(model, image, classes, batch);
  if (!status.ok()) return status;
  std::unique_ptr<Network> network(new Network(image, classes, batch));
  network->images_.resize(batch * image.length());
  if (model == "mlp") {
    network->AddMlp();
  } else {
    network->AddCnn();
  }
  return network;
}

void Network::AddMlp() {
  const ImageShape hidden1 = {1, 1, 256};
  const ImageShape hidden2 = {1, 1, 128};
  Add("fc1", std::make_unique<FullyConnected>(image_, hidden1.channels), true);
  Add("fc2", std::make_unique<FullyConnected>(hidden1, hidden2.channels), true);
  Add("fc3", std::make_unique<FullyConnected>(hidden2, classes_), false);
}

void Network::AddCnn() {
  const auto add_convolution = [&](const std::string& name,
                                   const ImageShape& input, int64_t outputs) {
    ConvolutionShape shape;
    shape.input = input;
    shape.output_channels = outputs;
    shape.kernel = kCnnKernel;
    Add(name, std::make_unique<Convolution>(shape, batch_), false);
    // The same as a relu before the pool, on a quarter of the elements.
    Add("", std::make_unique<MaxPooling>(shape.output()), true);
  };
  add_convolution("conv1", image_, 20);
  add_convolution("conv2", stages_.back().layer->output(), 50);
  const ImageShape hidden = {1, 1, 500};
  Add("fc1",
      std::make_unique<FullyConnected>(stages_.back().layer->output(),
                                       hidden.channels),
      true);
  Add("fc2", std::make_unique<FullyConnected>(hidden, classes_), false);
}

void Network::Add(const std::string& name, std::unique_ptr<Layer> layer,
                  bool relu) {
  Stage stage;
  stage.output.resize(batch_ * layer->output().length());
  stage.output_gradient.resize(stage.output.size());
  LayerSpec spec = layer->Spec(batch_);
  if (spec.parameters > 0) {
    stage.parameters.resize(spec.parameters);
    stage.gradient.resize(spec.parameters);
    stage.index = static_cast<int>(specs_.size());
    stage_of_layer_.push_back(static_cast<int>(stages_.size()));
    spec.name = name;
    specs_.push_back(std::move(spec));
  }
  stage.layer = std::move(layer);
  stage.relu = relu;
  stages_.push_back(std::move(stage));
}

absl::Span<float> Network::parameters(int layer) {
  return absl::MakeSpan(stage(layer).parameters);
}

absl::Span<const float> Network::parameters(int layer) const {
  return stage(layer).parameters;
}

absl::Span<float> Network::gradient(int layer) {
  return absl::MakeSpan(stage(layer).gradient);
}

bool Network::has_factors(int layer) const {
  return stage(layer).layer->has_factors();
}

Factors Network::factors(int layer) const {
  NEREUS_CHECK(has_factors(layer)) << specs_[layer].name << " has no factors";
  const int index = stage_of_layer_[layer];
  const std::vector<float>& input =
      index == 0 ? images_ : stages_[index - 1].output;
  return {stages_[index].output_gradient, input};
}

void Network::Initialize(uint64_t seed) {
  Random random(seed);
  for (size_t i = 0; i < specs_.size(); ++i) {
    const LayerSpec& spec = specs_[i];
    std::vector<float>& parameters = stage(static_cast<int>(i)).parameters;
    // Uniform in [-b, b) has variance b * b / 3.
    const double bound = std::sqrt(3.0 / static_cast<double>(spec.n));
    std::fill(parameters.begin(), parameters.end(), 0.0f);
    for (int64_t j = 0; j < spec.m * spec.n; ++j) {
      parameters[j] =
          static_cast<float>(bound * (2.0 * random.Uniform() - 1.0));
    }
  }
}

absl::Status Network::Run(int64_t images, absl::Span<const float> input,
                          absl::FunctionRef<absl::Status(int layer)> await) {
  NEREUS_CHECK(static_cast<int64_t>(input.size()) == images * image_.length())
      << input.size() << " floats for " << images << " images of "
      << image_.length();
  std::copy(input.begin(), input.end(), images_.begin());
  const float* in = images_.data();
  for (Stage& stage : stages_) {
    if (stage.index >= 0) NEREUS_RETURN_IF_ERROR(await(stage.index));
    float* out = stage.output.data();
    stage.layer->Forward(images, in, stage.parameters.data(), out);
    if (stage.relu) ReluForward(images * stage.layer->output().length(), out);
    in = out;
  }
  return absl::OkStatus();
}

float Network::Forward(absl::Span<const float> images,
                       absl::Span<const int32_t> labels) {
  return *Forward(images, labels, AwaitNothing);
}

absl::StatusOr<float> Network::Forward(
    absl::Span<const float> images, absl::Span<const int32_t> labels,
    absl::FunctionRef<absl::Status(int layer)> await) {
  NEREUS_CHECK(static_cast<int64_t>(labels.size()) == batch_)
      << labels.size() << " labels for a batch of " << batch_;
  for (int32_t label : labels) {
    NEREUS_CHECK(label >= 0 && label < classes_)
        << "label " << label << " of " << classes_ << " classes";
  }
  NEREUS_RETURN_IF_ERROR(Run(batch_, images, await));
  Stage& last = stages_.back();
  return SoftmaxCrossEntropy(batch_, classes_, last.output.data(),
                             labels.data(), last.output_gradient.data());
}

absl::Status Network::Backward(absl::FunctionRef<absl::Status(int layer)> ready,
                               float loss_scale) {
  if (loss_scale != 1.0f) {
    for (float& value : stages_.back().output_gradient) value *= loss_scale;
  }
  for (int i = static_cast<int>(stages_.size()) - 1; i >= 0; --i) {
    Stage& stage = stages_[i];
    float* output_gradient = stage.output_gradient.data();
    if (stage.relu) {
      ReluBackward(static_cast<int64_t>(stage.output.size()),
                   stage.output.data(), output_gradient);
    }
    // Nobody asks for the gradient by the images.
    const bool first = i == 0;
    stage.layer->Backward(
        batch_, first ? images_.data() : stages_[i - 1].output.data(),
        stage.parameters.data(), output_gradient, stage.gradient.data(),
        first ? nullptr : stages_[i - 1].output_gradient.data());
    if (stage.index < 0) continue;
    absl::Status status = ready(stage.index);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void Network::Predict(absl::Span<const float> images,
                      absl::Span<int32_t> classes) {
  const int64_t count = static_cast<int64_t>(classes.size());
  NEREUS_CHECK(count <= batch_)
      << "predicting " << count << " images with a batch of " << batch_;
  Run(count, images, AwaitNothing).IgnoreError();
  const float* logits = stages_.back().output.data();
  for (int64_t i = 0; i < count; ++i) {
    const float* row = logits + i * classes_;
    classes[i] =
        static_cast<int32_t>(std::max_element(row, row + classes_) - row);
  }
}

}  // namespace nereus
