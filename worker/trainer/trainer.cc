#include "worker/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "worker/trainer/dataset.h"

// The training loop. Read Run::Finish first: it begins steps until the job has
// enough contributions. Run::Step is one step: forward, backward with a push
// per layer, and the waits. A step is in one of three states:
//
//   begun --backward pushes all layers--> pending --all are awaited--> done
//
// The next step begins while the last one is pending, and its forward awaits
// the layers (Run::Await). At the end, nothing else does: Run::AwaitAll.

namespace nereus {
namespace {

absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Status CheckData(const DataSplit& data, const Network& network) {
  const ImageShape& have = data.train.image;
  const ImageShape& want = network.image();
  if (have != want) {
    return InvalidArgumentError("images are ", have.height, "x", have.width,
                                "x", have.channels, ", the network takes ",
                                want.height, "x", want.width, "x",
                                want.channels);
  }
  if (data.train.classes() > network.classes()) {
    return InvalidArgumentError("labels go up to ", data.train.classes() - 1,
                                ", the network has ", network.classes(),
                                " classes");
  }
  return absl::OkStatus();
}

// Sums up the losses of this worker's steps: over one pass through the
// examples, for the result, and since the last progress report.
class LossMeter {
 public:
  // Begins the first interval between reports.
  void Start(absl::Duration now) { report_at_ = now; }

  // Adds the loss of a step of pass `pass`. The first step of a pass drops the
  // losses of the pass before. A loss that is not finite counts for the speed
  // alone.
  void Count(int64_t pass, float loss);

  // Returns the mean loss of the current pass; NaN if none of its steps had a
  // finite loss.
  double PassMean() const {
    return pass_steps_ > 0 ? pass_sum_ / static_cast<double>(pass_steps_)
                           : std::numeric_limits<double>::quiet_NaN();
  }

  // Returns the time since the last report.
  absl::Duration Elapsed(absl::Duration now) const { return now - report_at_; }

  // Writes mean loss and speed since the last report to `progress`, and begins
  // the next interval.
  void Report(absl::Duration now, int64_t batch, TrainProgress& progress);

 private:
  int64_t pass_ = -1;  // Number of the current pass.
  double pass_sum_ = 0.0;
  int64_t pass_steps_ = 0;
  absl::Duration report_at_;   // Time of the last report.
  double report_sum_ = 0.0;    // Sum of the finite losses since then.
  int64_t report_losses_ = 0;  // Number of the finite losses since then.
  int64_t report_steps_ = 0;   // Number of steps since then.
};

void LossMeter::Count(int64_t pass, float loss) {
  if (pass != pass_) {
    pass_ = pass;
    pass_sum_ = 0.0;
    pass_steps_ = 0;
  }
  ++report_steps_;
  if (!std::isfinite(loss)) return;
  pass_sum_ += loss;
  ++pass_steps_;
  report_sum_ += loss;
  ++report_losses_;
}

void LossMeter::Report(absl::Duration now, int64_t batch,
                       TrainProgress& progress) {
  progress.loss = report_losses_ > 0
                      ? report_sum_ / static_cast<double>(report_losses_)
                      : std::numeric_limits<double>::quiet_NaN();
  const double seconds = absl::ToDoubleSeconds(Elapsed(now));
  const auto images = static_cast<double>(report_steps_ * batch);
  progress.images_per_second = seconds > 0.0 ? images / seconds : 0.0;
  report_at_ = now;
  report_sum_ = 0.0;
  report_losses_ = 0;
  report_steps_ = 0;
}

// State of one call of Train. Used by one thread.
class Run {
 public:
  Run(const TrainerOptions& options, const DataSplit& data, Batches batches,
      Network* network, OptimizerState* state, Client* client);

  // Trains to the end.
  absl::StatusOr<TrainResult> Finish();

 private:
  // Does step_. When it returns, the step is done, or pending.
  absl::Status Step();
  // Pushes the result of Backward for the layer: its gradient, or its factors.
  absl::Status Push(int layer);
  // Waits for `layer` in the pending step, if there is one, and updates the
  // layer's parameters if the caller runs the optimizer. REQUIRES: layers in
  // order.
  absl::Status Await(int layer);
  // Waits for all layers of the pending step, then updates them. Counts the
  // time from `begin` to the end of the waits as waiting, and the time of the
  // updates as backward. Returns the time at which the updates ended.
  absl::StatusOr<absl::Duration> AwaitAll(absl::Duration begin);
  // Marks the pending step as done.
  void FinishPending();
  // Runs the optimizer on `layer`, if the caller runs it and the pending step
  // was not skipped.
  absl::Status Update(int layer);
  // Calls TrainerOptions::progress if the interval is over, or the step is the
  // last one.
  void ReportProgress(absl::Duration now);
  // Returns the pass through the examples to which step_ belongs, from 0: the
  // pass of its first example.
  int64_t Pass() const;

  const TrainerOptions& options_;
  const DataSplit& data_;
  Batches batches_;
  Network* const network_;
  OptimizerState* const state_;
  Client* const client_;
  const Stream stream_;          // That of the network's device.
  const int64_t images_wanted_;  // Number of images for all workers together.
  LossMeter losses_;
  StepInfo step_;                   // Step that was begun last.
  std::optional<int64_t> pending_;  // Step that is pushed and not done.
  int awaited_ = 0;  // Number of layers of that step that are awaited.
  std::vector<float> images_;  // Batch of this worker, normalised.
  std::vector<int32_t> labels_;
  TrainResult result_;
};

Run::Run(const TrainerOptions& options, const DataSplit& data, Batches batches,
         Network* network, OptimizerState* state, Client* client)
    : options_(options),
      data_(data),
      batches_(std::move(batches)),
      network_(network),
      state_(state),
      client_(client),
      stream_(network->device().stream()),
      images_wanted_(options.epochs * data.train.count()),
      images_(network_->batch() * network_->image().length()),
      labels_(network_->batch()) {}

absl::StatusOr<TrainResult> Run::Finish() {
  const absl::Duration begin = options_.now();
  losses_.Start(begin);
  for (bool ends = false; !ends;) {
    step_ = NEREUS_TRY(client_->BeginStep(stream_));
    if (step_.went_back) pending_.reset();
    // A worker can join after the last step of the job.
    const bool late =
        step_.contributions_before * network_->batch() >= images_wanted_;
    result_.leaves_early =
        !late && (step_.should_leave ||
                  (options_.should_leave && options_.should_leave()));
    const bool has_step = !late && !result_.leaves_early;
    absl::Status status = has_step ? Step() : absl::OkStatus();
    // The count is equal on all workers, so all end with the same step.
    const int64_t contributions = step_.contributions_before + step_.workers;
    ends = !has_step || contributions * network_->batch() >= images_wanted_;
    if (status.ok() && ends && pending_.has_value()) {
      status = AwaitAll(options_.now()).status();
    }
    if (absl::IsOutOfRange(status)) {  // The job has gone back.
      ends = false;
      continue;
    }
    NEREUS_TRY(status);
  }
  result_.total = options_.now() - begin;
  result_.train_loss = losses_.PassMean();
  return result_;
}

int64_t Run::Pass() const {
  return step_.contributions_before * network_->batch() / data_.train.count();
}

absl::Status Run::Step() {
  const bool turn = step_.step % step_.workers == step_.position;
  absl::SleepFor(options_.delay +
                 (turn ? options_.delay_in_turn : absl::ZeroDuration()));
  const absl::Duration begin = options_.now();
  const int64_t first =
      (step_.contributions_before + step_.position) * network_->batch();
  CopyExamples(data_.train, data_.normalisation, batches_.Examples(first),
               absl::MakeSpan(images_), absl::MakeSpan(labels_));
  // Forward calls Await, which adds its time to `wait` and `backward`. That
  // time must not count as forward, too.
  const absl::Duration counted = result_.wait + result_.backward;
  const float loss = NEREUS_TRY(network_->Forward(
      images_, labels_, [&](int layer) { return Await(layer); }));
  if (!std::isfinite(loss) && !client_->traits().may_skip) {
    // Ends the whole job: a worker that replaced this one would get the same
    // loss.
    return client_->Abort(absl::StrCat(
        "the loss is ", loss, " in step ", step_.step, " (epoch ", Pass() + 1,
        " of ", options_.epochs, "): is the learning rate too high?"));
  }
  const absl::Duration forward_end = options_.now();
  const absl::Duration awaiting = result_.wait + result_.backward - counted;
  pending_ = step_.step;
  awaited_ = 0;
  NEREUS_TRY(network_->Backward([&](int layer) { return Push(layer); },
                                step_.loss_scale));
  const absl::Duration backward_end = options_.now();
  result_.forward += forward_end - begin - awaiting;
  result_.backward += backward_end - forward_end;
  result_.images += network_->batch();
  ++result_.steps;
  result_.last_step = step_.step;
  result_.workers = step_.workers;
  losses_.Count(Pass(), loss);
  ReportProgress(backward_end);
  return absl::OkStatus();
}

absl::Status Run::Await(int layer) {
  if (!pending_.has_value()) return absl::OkStatus();
  const absl::Duration begin = options_.now();
  NEREUS_TRY(client_->WaitForward(layer, stream_));
  const absl::Duration wait_end = options_.now();
  NEREUS_TRY(Update(layer));
  result_.wait += wait_end - begin;
  result_.backward += options_.now() - wait_end;
  awaited_ = layer + 1;
  if (awaited_ == static_cast<int>(network_->specs().size())) FinishPending();
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> Run::AwaitAll(absl::Duration begin) {
  const int layers = static_cast<int>(network_->specs().size());
  for (int layer = awaited_; layer < layers; ++layer) {
    NEREUS_TRY(client_->WaitForward(layer, stream_));
  }
  const absl::Duration wait_end = options_.now();
  absl::Duration end = wait_end;
  if (client_->traits().updates_parameters) {
    for (int layer = awaited_; layer < layers; ++layer) {
      NEREUS_TRY(Update(layer));
    }
    end = options_.now();
  }
  result_.wait += wait_end - begin;
  result_.backward += end - wait_end;
  FinishPending();
  return end;
}

void Run::FinishPending() {
  if (client_->Skipped(*pending_)) ++result_.skipped;
  pending_.reset();
}

absl::Status Run::Push(int layer) {
  const absl::Span<float> gradient = network_->gradient(layer);
  return network_->has_factors(layer)
             ? client_->PushFactors(layer, step_.step, network_->factors(layer),
                                    gradient, stream_)
             : client_->Push(layer, step_.step, gradient, stream_);
}

absl::Status Run::Update(int layer) {
  const JobTraits& job = client_->traits();
  if (!job.updates_parameters || client_->Skipped(*pending_)) {
    return absl::OkStatus();
  }
  // On a GPU the mean replaces the gradient, and `stream_` waits for it.
  absl::Span<const float> mean = network_->gradient(layer);
  if (stream_ == nullptr) mean = NEREUS_TRY(client_->Mean(layer));
  const absl::Span<float> parameters = network_->parameters(layer);
  const int64_t bad = network_->device().Optimize(
      OptimizerAt(job.optimizer, job.rate_schedule, *pending_), *pending_,
      std::ssize(parameters), mean.data(), parameters.data(),
      (*state_)[layer].data());
  if (bad < 0) return absl::OkStatus();
  // Ends the whole job: all workers have the same update.
  return client_->Abort(absl::StrCat(
      "layer ", network_->specs()[layer].name, ", step ", *pending_,
      ": the update by the mean gradient of all workers has a NaN or an "
      "infinity at element ",
      bad, " of ", std::ssize(parameters)));
}

void Run::ReportProgress(absl::Duration now) {
  if (!options_.progress) return;
  const int64_t images_step = step_.workers * network_->batch();
  const int64_t images_left = images_wanted_ -
                              step_.contributions_before * network_->batch() -
                              images_step;
  // Always reports the last step.
  if (losses_.Elapsed(now) < options_.progress_interval && images_left > 0) {
    return;
  }
  TrainProgress progress;
  progress.epoch = Pass() + 1;
  progress.epochs = options_.epochs;
  progress.step = step_.step + 1;
  progress.steps =
      progress.step +
      std::max<int64_t>(0, (images_left + images_step - 1) / images_step);
  losses_.Report(now, network_->batch(), progress);
  options_.progress(progress);
}

}  // namespace

void TrainResult::Add(const TrainResult& earlier) {
  if (steps == 0 && earlier.steps > 0) {
    last_step = earlier.last_step;
    workers = earlier.workers;
    train_loss = earlier.train_loss;
  }
  steps += earlier.steps;
  skipped += earlier.skipped;
  images += earlier.images;
  total += earlier.total;
  forward += earlier.forward;
  backward += earlier.backward;
  wait += earlier.wait;
}

absl::Status TrainerOptions::Validate() const {
  if (epochs < 1 || epochs > kEpochsMax) {
    return InvalidArgumentError("epochs is ", epochs, ", must be in [1, ",
                                kEpochsMax, "]");
  }
  if (progress_interval < absl::ZeroDuration()) {
    return InvalidArgumentError("progress_interval is ",
                                absl::FormatDuration(progress_interval),
                                ", must not be negative");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerBinding>> BindLayers(Network* network,
                                                     OptimizerState* state) {
  std::vector<LayerBinding> layers;
  state->clear();
  for (const LayerSpec& spec : network->specs()) {
    const int layer = static_cast<int>(layers.size());
    // Has room for any optimizer, because Connect tells later which it is.
    state->emplace_back() = NEREUS_TRY(
        network->device().Allocate(kOptimizerStatesMax * spec.parameters));
    layers.push_back({spec, network->parameters(layer), state->back().span()});
  }
  return layers;
}

absl::StatusOr<TrainResult> Train(const TrainerOptions& options,
                                  const DataSplit& data, Network* network,
                                  OptimizerState* state, Client* client) {
  NEREUS_TRY(options.Validate());
  NEREUS_TRY(CheckData(data, *network));
  Batches::Options batch_options;
  batch_options.examples = data.train.count();
  batch_options.batch = network->batch();
  batch_options.seed = options.seed;
  Batches batches = NEREUS_TRY(Batches::Create(batch_options));
  TrainerOptions complete = options;
  if (!complete.now) complete.now = SteadyNow;
  return Run(complete, data, std::move(batches), network, state, client)
      .Finish();
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
