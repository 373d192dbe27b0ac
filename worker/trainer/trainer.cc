#include "worker/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
      Replica* replica);

  absl::StatusOr<TrainResult> Finish();

 private:
  absl::Status Step(const StepInfo& step);
  // Waits until a layer's parameters are those after the step that was pushed,
  // if one is pending.
  absl::Status Await(int layer);
  // The same for all layers, from `begin` on; when it was over.
  absl::StatusOr<absl::Duration> AwaitAll(absl::Duration begin);
  absl::Status Update(int layer);
  void CountLoss(int64_t pass, float loss);
  void ReportProgress(absl::Duration now);
  // The pass that a step's first example is of, from 0.
  int64_t PassOf(const StepInfo& step) const;

  const TrainerOptions& options_;
  const DataSplit& data_;
  Batches batches_;
  Replica* const replica_;
  Network* const network_;       // The replica's,
  const Client* const client_;   // and so is it.
  const int64_t images_wanted_;  // Of all workers.

  StepInfo step_;  // The last that was begun.
  // One that is pushed, and whose layers before this one are awaited.
  std::optional<int64_t> pending_;
  int awaited_ = 0;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
  TrainResult result_;

  // The losses of this worker's steps of one pass.
  int64_t loss_pass_ = -1;
  double loss_sum_ = 0.0;
  int64_t loss_steps_ = 0;

  // Since the last progress.
  absl::Duration progress_at_;
  double progress_loss_ = 0.0;
  int64_t progress_steps_ = 0;
};

Run::Run(const TrainerOptions& options, const DataSplit& data, Batches batches,
         Replica* replica)
    : options_(options),
      data_(data),
      batches_(std::move(batches)),
      replica_(replica),
      network_(&replica->network()),
      client_(&replica->client()),
      images_wanted_(options.epochs * data.train.count()),
      images_(network_->batch() * network_->image().length()),
      labels_(network_->batch()) {}

absl::StatusOr<TrainResult> Run::Finish() {
  const absl::Duration begin = options_.now();
  progress_at_ = begin;
  for (bool ends = false; !ends;) {
    NEREUS_ASSIGN_OR_RETURN(step_, replica_->BeginStep());
    if (step_.went_back) pending_.reset();
    // One that joins may come too late.
    const bool late =
        step_.contributions_before * network_->batch() >= images_wanted_;
    absl::Status status = late ? absl::OkStatus() : Step(step_);
    // Equal on all workers, so that all end with the same step.
    const int64_t contributions = step_.contributions_before + step_.workers;
    ends = late || contributions * network_->batch() >= images_wanted_;
    if (status.ok() && ends && pending_.has_value()) {
      status = AwaitAll(options_.now()).status();
    }
    if (absl::IsOutOfRange(status)) {  // The job has gone back.
      ends = false;
      continue;
    }
    NEREUS_RETURN_IF_ERROR(status);
  }
  result_.total = options_.now() - begin;
  result_.train_loss =
      loss_steps_ > 0 ? loss_sum_ / static_cast<double>(loss_steps_) : 0.0;
  return result_;
}

int64_t Run::PassOf(const StepInfo& step) const {
  return step.contributions_before * network_->batch() / data_.train.count();
}

absl::Status Run::Step(const StepInfo& step) {
  const bool turn = step.step % step.workers == step.position;
  absl::SleepFor(options_.delay +
                 (turn ? options_.delay_in_turn : absl::ZeroDuration()));
  const absl::Duration begin = options_.now();
  const int64_t first =
      (step.contributions_before + step.position) * network_->batch();
  CopyExamples(data_.train, data_.normalisation, batches_.Examples(first),
               absl::MakeSpan(images_), absl::MakeSpan(labels_));
  const absl::Duration before = result_.wait + result_.backward;
  NEREUS_ASSIGN_OR_RETURN(const float loss,
                          network_->Forward(images_, labels_, [&](int layer) {
                            return Await(layer);
                          }));
  if (!std::isfinite(loss) && !client_->traits().may_skip) {
    return absl::FailedPreconditionError(
        absl::StrCat("the loss is ", loss, " in step ", step.step, " (epoch ",
                     PassOf(step) + 1, " of ", options_.epochs,
                     "): is the learning rate too high?"));
  }
  const absl::Duration forward_end = options_.now();
  const absl::Duration not_forward = result_.wait + result_.backward - before;
  pending_ = step.step;
  awaited_ = 0;
  NEREUS_RETURN_IF_ERROR(network_->Backward(
      [&](int layer) { return replica_->Push(layer, step.step); },
      step.loss_scale));
  const absl::Duration backward_end = options_.now();
  result_.forward += forward_end - begin - not_forward;
  result_.backward += backward_end - forward_end;
  absl::Duration end = backward_end;
  if (!client_->traits().decoupled) {
    NEREUS_ASSIGN_OR_RETURN(end, AwaitAll(backward_end));
  }
  result_.images += network_->batch();
  ++result_.steps;
  result_.last_step = step.step;
  result_.workers = step.workers;
  if (std::isfinite(loss)) CountLoss(PassOf(step), loss);
  ReportProgress(end);
  return absl::OkStatus();
}

absl::Status Run::Await(int layer) {
  if (!pending_.has_value()) return absl::OkStatus();
  const absl::Duration begin = options_.now();
  NEREUS_RETURN_IF_ERROR(replica_->WaitForward(layer));
  const absl::Duration wait_end = options_.now();
  NEREUS_RETURN_IF_ERROR(Update(layer));
  result_.wait += wait_end - begin;
  result_.backward += options_.now() - wait_end;
  awaited_ = layer + 1;
  if (awaited_ < static_cast<int>(network_->specs().size())) {
    return absl::OkStatus();
  }
  if (client_->Skipped(*pending_)) ++result_.skipped;
  pending_.reset();
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> Run::AwaitAll(absl::Duration begin) {
  const int layers = static_cast<int>(network_->specs().size());
  for (int layer = awaited_; layer < layers; ++layer) {
    NEREUS_RETURN_IF_ERROR(replica_->WaitForward(layer));
  }
  const absl::Duration wait_end = options_.now();
  absl::Duration end = wait_end;
  if (client_->traits().updates_parameters) {
    for (int layer = awaited_; layer < layers; ++layer) {
      NEREUS_RETURN_IF_ERROR(Update(layer));
    }
    end = options_.now();
  }
  result_.wait += wait_end - begin;
  result_.backward += end - wait_end;
  if (client_->Skipped(*pending_)) ++result_.skipped;
  pending_.reset();
  return end;
}

void Run::CountLoss(int64_t pass, float loss) {
  if (pass != loss_pass_) {
    loss_pass_ = pass;
    loss_sum_ = 0.0;
    loss_steps_ = 0;
  }
  loss_sum_ += loss;
  ++loss_steps_;
  progress_loss_ += loss;
  ++progress_steps_;
}

absl::Status Run::Update(int layer) {
  if (!client_->traits().updates_parameters || client_->Skipped(*pending_)) {
    return absl::OkStatus();
  }
  return replica_->Update(layer, *pending_);
}

void Run::ReportProgress(absl::Duration now) {
  if (!options_.progress) return;
  const int64_t images_step = step_.workers * network_->batch();
  const int64_t images_left = images_wanted_ -
                              step_.contributions_before * network_->batch() -
                              images_step;
  const absl::Duration elapsed = now - progress_at_;
  if (elapsed < options_.progress_interval && images_left > 0) return;
  TrainProgress progress;
  progress.epoch = PassOf(step_) + 1;
  progress.epochs = options_.epochs;
  progress.step = step_.step + 1;
  progress.steps =
      progress.step +
      std::max<int64_t>(0, (images_left + images_step - 1) / images_step);
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

absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                  const DataSplit& data, Replica* replica) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_RETURN_IF_ERROR(CheckData(data, replica->network()));
  Batches::Options batch_options;
  batch_options.examples = data.train.count();
  batch_options.batch = replica->network().batch();
  batch_options.seed = options.seed;
  NEREUS_ASSIGN_OR_RETURN(Batches batches, Batches::Create(batch_options));
  TrainerOptions complete = options;
  if (!complete.now) complete.now = SteadyNow;
  return Run(complete, data, std::move(batches), replica).Finish();
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
    const std::vector<float> parameters =
        network.ReadParameters(static_cast<int>(i));
    crc =
        ExtendCrc32c(crc, parameters.data(), parameters.size() * sizeof(float));
  }
  return crc;
}

}  // namespace nereus
