#include "worker/trainer/network.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/trainer/convolution.h"

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
    int64_t batch, std::shared_ptr<Device> device) {
  if (model != "mlp" && model != "cnn") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown model \"", model, "\", must be mlp or cnn"));
  }
  absl::Status status = CheckSizes(model, image, classes, batch);
  if (!status.ok()) return status;
  std::unique_ptr<Network> network(
      new Network(image, classes, batch, std::move(device)));
  NEREUS_ASSIGN_OR_RETURN(network->images_,
                          network->device_->Allocate(batch * image.length()));
  NEREUS_RETURN_IF_ERROR(model == "mlp" ? network->AddMlp()
                                        : network->AddCnn());
  return network;
}

absl::Status Network::AddMlp() {
  const ImageShape hidden1 = {1, 1, 256};
  const ImageShape hidden2 = {1, 1, 128};
  NEREUS_RETURN_IF_ERROR(
      Add("fc1", device_->MakeFullyConnected(image_, hidden1.channels), true));
  NEREUS_RETURN_IF_ERROR(
      Add("fc2", device_->MakeFullyConnected(hidden1, hidden2.channels), true));
  return Add("fc3", device_->MakeFullyConnected(hidden2, classes_), false);
}

absl::Status Network::AddCnn() {
  const auto add_convolution = [&](const std::string& name,
                                   const ImageShape& input,
                                   int64_t outputs) -> absl::Status {
    ConvolutionShape shape;
    shape.input = input;
    shape.output_channels = outputs;
    shape.kernel = kCnnKernel;
    NEREUS_ASSIGN_OR_RETURN(auto convolution,
                            device_->MakeConvolution(shape, batch_));
    NEREUS_RETURN_IF_ERROR(Add(name, std::move(convolution), false));
    // The same as a relu before the pool, on a quarter of the elements.
    return Add("", device_->MakeMaxPooling(shape.output()), true);
  };
  NEREUS_RETURN_IF_ERROR(add_convolution("conv1", image_, 20));
  NEREUS_RETURN_IF_ERROR(
      add_convolution("conv2", stages_.back().layer->output(), 50));
  const ImageShape hidden = {1, 1, 500};
  NEREUS_RETURN_IF_ERROR(
      Add("fc1",
          device_->MakeFullyConnected(stages_.back().layer->output(),
                                      hidden.channels),
          true));
  return Add("fc2", device_->MakeFullyConnected(hidden, classes_), false);
}

absl::Status Network::Add(const std::string& name, std::unique_ptr<Layer> layer,
                          bool relu) {
  const auto allocate = [this](int64_t count,
                               FloatArray& array) -> absl::Status {
    NEREUS_ASSIGN_OR_RETURN(array, device_->Allocate(count));
    return absl::OkStatus();
  };
  Stage stage;
  const int64_t outputs = batch_ * layer->output().length();
  NEREUS_RETURN_IF_ERROR(allocate(outputs, stage.output));
  NEREUS_RETURN_IF_ERROR(allocate(outputs, stage.output_gradient));
  LayerSpec spec = layer->Spec(batch_);
  if (spec.parameters > 0) {
    NEREUS_RETURN_IF_ERROR(allocate(spec.parameters, stage.parameters));
    NEREUS_RETURN_IF_ERROR(allocate(spec.parameters, stage.gradient));
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

absl::Span<float> Network::parameters(int layer) {
  return stage(layer).parameters.span();
}

absl::Span<const float> Network::parameters(int layer) const {
  return stage(layer).parameters.span();
}

std::vector<float> Network::ReadParameters(int layer) const {
  std::vector<float> values(specs_[layer].parameters);
  device_->Read(stage(layer).parameters.data(), absl::MakeSpan(values));
  return values;
}

absl::Span<float> Network::gradient(int layer) {
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
    const LayerSpec& spec = specs_[i];
    std::vector<float> parameters(spec.parameters);
    // Uniform in [-b, b) has variance b * b / 3.
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
  NEREUS_CHECK(static_cast<int64_t>(input.size()) == images * image_.length())
      << input.size() << " floats for " << images << " images of "
      << image_.length();
  size_t awaited = 0;
  // All stages up to `last`. What a stage reads may be a factor of it, which
  // the client may read, too, until the layer's round is done.
  const auto await_to = [&](size_t last) {
    for (; awaited <= last && awaited < stages_.size(); ++awaited) {
      if (stages_[awaited].index < 0) continue;
      NEREUS_RETURN_IF_ERROR(await(stages_[awaited].index));
    }
    return absl::OkStatus();
  };
  const auto is_factor = [this](size_t i) {
    return i < stages_.size() && stages_[i].layer->has_factors();
  };
  if (is_factor(0)) NEREUS_RETURN_IF_ERROR(await_to(0));
  device_->Write(input, images_.data());
  const float* in = images_.data();
  for (size_t i = 0; i < stages_.size(); ++i) {
    NEREUS_RETURN_IF_ERROR(await_to(is_factor(i + 1) ? i + 1 : i));
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
  NEREUS_CHECK(static_cast<int64_t>(labels.size()) == batch_)
      << labels.size() << " labels for a batch of " << batch_;
  for (int32_t label : labels) {
    NEREUS_CHECK(label >= 0 && label < classes_)
        << "label " << label << " of " << classes_ << " classes";
  }
  NEREUS_RETURN_IF_ERROR(Run(batch_, images, await));
  Stage& last = stages_.back();
  const float loss =
      device_->SoftmaxCrossEntropy(batch_, classes_, last.output.data(),
                                   labels.data(), last.output_gradient.data());
  NEREUS_RETURN_IF_ERROR(device_->status());
  return loss;
}

absl::Status Network::Backward(absl::FunctionRef<absl::Status(int layer)> ready,
                               float loss_scale) {
  if (loss_scale != 1.0f) {
    const FloatArray& gradient = stages_.back().output_gradient;
    device_->Scale(gradient.count, loss_scale, gradient.data());
  }
  for (int i = static_cast<int>(stages_.size()) - 1; i >= 0; --i) {
    Stage& stage = stages_[i];
    float* output_gradient = stage.output_gradient.data();
    if (stage.relu) {
      device_->ReluBackward(stage.output.count, stage.output.data(),
                            output_gradient);
    }
    // Nobody asks for the gradient by the images.
    const bool first = i == 0;
    stage.layer->Backward(
        batch_, first ? images_.data() : stages_[i - 1].output.data(),
        stage.parameters.data(), output_gradient, stage.gradient.data(),
        first ? nullptr : stages_[i - 1].output_gradient.data());
    if (stage.index < 0) continue;
    NEREUS_RETURN_IF_ERROR(ready(stage.index));
  }
  return device_->status();
}

void Network::Predict(absl::Span<const float> images,
                      absl::Span<int32_t> classes) {
  const int64_t count = static_cast<int64_t>(classes.size());
  NEREUS_CHECK(count <= batch_)
      << "predicting " << count << " images with a batch of " << batch_;
  Run(count, images, AwaitNothing).IgnoreError();
  device_->PickLargest(classes_, stages_.back().output.data(), classes);
}

}  // namespace nereus
