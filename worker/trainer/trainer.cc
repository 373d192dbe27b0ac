#include "worker/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "worker/trainer/batches.h"

namespace nereus {
namespace {

absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Status CheckData(const DataSplit& data, const Network& network) {
  const ImageShape& have = data.train.image;
  const ImageShape& want = network.image();
  if (have != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("images are ", have.height, "x", have.width, "x",
                     have.channels, ", the network takes ", want.height, "x",
                     want.width, "x", want.channels));
  }
  if (data.train.classes() > network.classes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("labels go up to ", data.train.classes() - 1,
                     ", the network has ", network.classes(), " classes"));
  }
  return absl::OkStatus();
}

// One run of Train: what outlives a step.
class Run {
 public:
  Run(const TrainerOptions& options, const DataSplit& data, Batches batches,
      Network* network, Client* client);

  absl::StatusOr<TrainResult> Finish();

 private:
  absl::Status Step(int64_t epoch, absl::Span<const uint32_t> examples);
  absl::Status Push(int layer);
  void UpdateParameters();
  void ReportProgress(int64_t epoch, absl::Duration now);

  const TrainerOptions& options_;
  const DataSplit& data_;
  Batches batches_;
  Network* const network_;
  Client* const client_;
  const int64_t steps_;

  std::vector<float> images_;
  std::vector<int32_t> labels_;
  std::vector<std::vector<float>> optimizer_states_;  // By layer.
  double epoch_loss_ = 0.0;  // Sum over the epoch's steps so far.
  TrainResult result_;

  // Since the last progress.
  absl::Duration progress_at_;
  double progress_loss_ = 0.0;
  int64_t progress_steps_ = 0;
};

Run::Run(const TrainerOptions& options, const DataSplit& data, Batches batches,
         Network* network, Client* client)
    : options_(options),
      data_(data),
      batches_(std::move(batches)),
      network_(network),
      client_(client),
      steps_(options.epochs * batches_.steps_per_epoch()),
      images_(network->batch() * network->image().length()),
      labels_(network->batch()) {
  if (!client->updates_parameters()) return;
  for (const LayerSpec& spec : network->specs()) {
    optimizer_states_.emplace_back(
        OptimizerStateCount(client->optimizer().rule) * spec.parameters);
  }
}

absl::StatusOr<TrainResult> Run::Finish() {
  const absl::Duration begin = options_.now();
  progress_at_ = begin;
  for (int64_t epoch = 0; epoch < options_.epochs; ++epoch) {
    batches_.StartEpoch(epoch);
    epoch_loss_ = 0.0;
    for (int64_t i = 0; i < batches_.steps_per_epoch(); ++i) {
      NEREUS_RETURN_IF_ERROR(Step(epoch, batches_.Examples(i)));
    }
  }
  result_.total = options_.now() - begin;
  result_.train_loss =
      epoch_loss_ / static_cast<double>(batches_.steps_per_epoch());
  return result_;
}

absl::Status Run::Step(int64_t epoch, absl::Span<const uint32_t> examples) {
  const absl::Duration begin = options_.now();
  CopyExamples(data_.train, data_.normalisation, examples,
               absl::MakeSpan(images_), absl::MakeSpan(labels_));
  const float loss = network_->Forward(images_, labels_);
  if (!std::isfinite(loss)) {
    return absl::OutOfRangeError(absl::StrCat(
        "the loss is ", loss, " in step ", result_.steps + 1, " of ", steps_,
        " (epoch ", epoch + 1, "): is the learning rate too high?"));
  }
  const absl::Duration forward_end = options_.now();
  NEREUS_RETURN_IF_ERROR(
      network_->Backward([this](int layer) { return Push(layer); }));
  const absl::Duration backward_end = options_.now();
  NEREUS_RETURN_IF_ERROR(client_->WaitAll(result_.steps));
  const absl::Duration wait_end = options_.now();
  absl::Duration end = wait_end;
  if (client_->updates_parameters()) {
    UpdateParameters();
    end = options_.now();
  }
  result_.forward += forward_end - begin;
  result_.backward += backward_end - forward_end + (end - wait_end);
  result_.wait += wait_end - backward_end;
  result_.images += network_->batch();
  ++result_.steps;
  epoch_loss_ += loss;
  progress_loss_ += loss;
  ++progress_steps_;
  ReportProgress(epoch, end);
  return absl::OkStatus();
}

absl::Status Run::Push(int layer) {
  const absl::Span<float> gradient = network_->gradient(layer);
  if (!network_->has_factors(layer)) {
    return client_->Push(layer, result_.steps, gradient);
  }
  return client_->PushFactors(
      layer, result_.steps, network_->factors(layer),
      client_->updates_parameters() ? gradient : absl::Span<float>());
}

void Run::UpdateParameters() {
  for (size_t i = 0; i < optimizer_states_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const absl::Span<float> parameters = network_->parameters(layer);
    ApplyOptimizer(client_->optimizer(), result_.steps,
                   static_cast<int64_t>(parameters.size()), 1.0f,
                   network_->gradient(layer).data(), parameters.data(),
                   optimizer_states_[i].data(), parameters.data());
  }
}

void Run::ReportProgress(int64_t epoch, absl::Duration now) {
  if (!options_.progress) return;
  const absl::Duration elapsed = now - progress_at_;
  if (elapsed < options_.progress_interval && result_.steps < steps_) return;
  TrainProgress progress;
  progress.epoch = epoch + 1;
  progress.epochs = options_.epochs;
  progress.step = result_.steps;
  progress.steps = steps_;
  progress.loss = progress_loss_ / static_cast<double>(progress_steps_);
  const double images =
      static_cast<double>(progress_steps_ * network_->batch());
  const double seconds = absl::ToDoubleSeconds(elapsed);
  progress.images_per_second = seconds > 0.0 ? images / seconds : 0.0;
  options_.progress(progress);
  progress_at_ = now;
  progress_loss_ = 0.0;
  progress_steps_ = 0;
}

}  // namespace

absl::Status TrainerOptions::Validate() const {
  if (epochs < 1 || epochs > kEpochsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "epochs is ", epochs, ", must be in [1, ", kEpochsMax, "]"));
  }
  if (progress_interval < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "progress_interval is ", absl::FormatDuration(progress_interval),
        ", must not be negative"));
  }
  return absl::OkStatus();
}

std::vector<LayerBinding> BindLayers(Network* network) {
  std::vector<LayerBinding> layers;
  for (const LayerSpec& spec : network->specs()) {
    const int layer = static_cast<int>(layers.size());
    layers.push_back({spec, network->parameters(layer)});
  }
  return layers;
}

absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                  const DataSplit& data, Network* network,
                                  Client* client) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_RETURN_IF_ERROR(CheckData(data, *network));
  Batches::Options batch_options;
  batch_options.examples = data.train.count();
  batch_options.batch = network->batch();
  batch_options.workers = client->workers();
  batch_options.rank = client->rank();
  batch_options.seed = options.seed;
  NEREUS_ASSIGN_OR_RETURN(Batches batches, Batches::Create(batch_options));
  TrainerOptions complete = options;
  if (!complete.now) complete.now = SteadyNow;
  return Run(complete, data, std::move(batches), network, client).Finish();
}

double Accuracy(const Dataset& dataset, const Normalisation& normalisation,
                Network* network) {
  const int64_t length = network->image().length();
  std::vector<uint32_t> indices(network->batch());
  std::vector<float> images(network->batch() * length);
  std::vector<int32_t> labels(network->batch());
  std::vector<int32_t> predicted(network->batch());
  int64_t correct = 0;
  for (int64_t first = 0; first < dataset.count(); first += network->batch()) {
    const int64_t count = std::min(network->batch(), dataset.count() - first);
    std::iota(indices.begin(), indices.end(), static_cast<uint32_t>(first));
    const absl::Span<float> some_images(images.data(), count * length);
    CopyExamples(dataset, normalisation,
                 absl::MakeConstSpan(indices).subspan(0, count), some_images,
                 absl::MakeSpan(labels).subspan(0, count));
    network->Predict(some_images, absl::MakeSpan(predicted).subspan(0, count));
    for (int64_t i = 0; i < count; ++i) correct += predicted[i] == labels[i];
  }
  return dataset.count() == 0 ? 0.0
                              : static_cast<double>(correct) /
                                    static_cast<double>(dataset.count());
}

uint32_t ParameterChecksum(const Network& network) {
  uint32_t crc = 0;
  for (size_t i = 0; i < network.specs().size(); ++i) {
    const absl::Span<const float> parameters =
        network.parameters(static_cast<int>(i));
    crc =
        ExtendCrc32c(crc, parameters.data(), parameters.size() * sizeof(float));
  }
  return crc;
}

}  // namespace nereus
