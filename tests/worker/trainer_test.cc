// Checks the training loop, mostly with a client that records its calls, and
// Accuracy and ParameterChecksum.

#include "worker/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"
#include "tests/worker/client_stub.h"
#include "worker/trainer/dataset.h"
#include "worker/trainer/standalone_client.h"

namespace nereus {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

// Client of a job in which all workers push equal gradients, so the mean is
// this worker's own gradient. The caller updates the parameters.
class RecordingClient : public ClientStub {
 public:
  RecordingClient(int rank, int workers, std::vector<LayerBinding> layers,
                  const OptimizerOptions& optimizer = {})
      : rank_(rank), workers_(workers), layers_(std::move(layers)) {
    job.rank = rank;
    job.optimizer = optimizer;
    job.updates_parameters = true;
  }

  absl::StatusOr<StepInfo> BeginStep(absl::Duration /*timeout*/,
                                     Stream) override {
    begun_at.push_back(calls.size());
    StepInfo info;
    info.step = next_step_++;
    info.position = rank_;
    info.workers = workers_;
    info.contributions_before = info.step * workers_;
    return info;
  }
  absl::Status Abort(absl::string_view reason) override {
    calls.push_back("abort");
    return FailedPreconditionError(reason);
  }
  absl::Status Push(int layer, int64_t step, absl::Span<float> gradient,
                    Stream) override {
    calls.push_back("push " + Describe(layer, step));
    pushed_step_ = step;
    EXPECT_EQ(std::ssize(gradient), layers_[layer].spec.parameters);
    means_[layer] = gradient;
    return push_status;
  }
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient, Stream) override {
    calls.push_back("factors " + Describe(layer, step));
    pushed_step_ = step;
    const LayerSpec& spec = layers_[layer].spec;
    EXPECT_EQ(std::ssize(gradient), spec.parameters);
    FactorGradient(spec.rows, spec.m, spec.n, true, 1.0f,
                   factors.output_gradient.data(), factors.input.data(),
                   gradient.data());
    means_[layer] = gradient;
    return push_status;
  }
  absl::StatusOr<absl::Span<const float>> Mean(int layer) const override {
    return means_.at(layer);
  }
  absl::Status WaitForward(int layer, absl::Duration /*timeout*/,
                           Stream) override {
    calls.push_back("wait " + Describe(layer, pushed_step_));
    return wait_status;
  }

  std::vector<std::string> calls;
  std::vector<size_t> begun_at;  // Number of calls before each step.
  absl::Status push_status;
  absl::Status wait_status;

 private:
  std::string Describe(int layer, int64_t step) const {
    return layers_[layer].spec.name + " " + std::to_string(step);
  }

  const int rank_;
  const int workers_;
  int64_t next_step_ = 0;
  int64_t pushed_step_ = -1;
  std::map<int, absl::Span<const float>> means_;  // Gradients, by layer.
  const std::vector<LayerBinding> layers_;
};

class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    SetGemmThreads(1);
    absl::StatusOr<DataSplit> data = Split(GenerateSynthetic(1, 100), 0.2);
    ASSERT_TRUE(data.ok()) << data.status();
    data_ = *std::move(data);
  }

  std::unique_ptr<Network> MakeNetwork(const std::string& model,
                                       int64_t batch) {
    absl::StatusOr<std::unique_ptr<Network>> network =
        Network::Create(model, data_.train.image, 10, batch);
    EXPECT_TRUE(network.ok()) << network.status();
    (*network)->Initialize(1);
    return *std::move(network);
  }

  std::unique_ptr<Client> Standalone(Network* network) {
    absl::StatusOr<std::unique_ptr<Client>> client =
        StandaloneClient::Create(optimizer_, *BindLayers(network, &state_));
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  DataSplit data_;
  TrainerOptions options_;
  OptimizerState state_;
  OptimizerOptions optimizer_;  // Optimizer of Standalone().
};

TEST_F(TrainerTest, PushesEachLayerLastFirstAndThenWaits) {
  const auto network = MakeNetwork("cnn", 40);
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  options_.epochs = 1;
  ASSERT_TRUE(Train(options_, data_, network.get(), &state_, &client).ok());
  EXPECT_THAT(
      client.calls,
      ElementsAre("factors fc2 0", "factors fc1 0", "push conv2 0",
                  "push conv1 0", "wait conv1 0", "wait conv2 0", "wait fc1 0",
                  "wait fc2 0", "factors fc2 1", "factors fc1 1",
                  "push conv2 1", "push conv1 1", "wait conv1 1",
                  "wait conv2 1", "wait fc1 1", "wait fc2 1"));
}

// At the end the loop waits for the last step.
TEST_F(TrainerTest, WaitsInTheNextForward) {
  options_.epochs = 3;
  const auto network = MakeNetwork("cnn", 40);
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  const auto result = Train(options_, data_, network.get(), &state_, &client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 6);
  EXPECT_EQ(client.calls.size(), 6u * 8);
  EXPECT_EQ(client.begun_at[1], 4u);  // After four pushes.
  EXPECT_EQ(client.calls.back(), "wait fc2 5");
}

TEST_F(TrainerTest, WorkerTrainsOnItsShareOnly) {
  const auto network = MakeNetwork("mlp", 8);
  RecordingClient client(/*rank=*/2, /*workers=*/3,
                         *BindLayers(network.get(), &state_));
  options_.epochs = 1;
  const absl::StatusOr<TrainResult> result =
      Train(options_, data_, network.get(), &state_, &client);
  ASSERT_TRUE(result.ok()) << result.status();
  // 80 images need four steps of 24; the last goes 16 past the end of the pass.
  EXPECT_EQ(result->steps, 4);
  EXPECT_EQ(result->images, 32);
}

TEST_F(TrainerTest, OptimizerOfTheCallerAndOfTheClientGiveEqualBits) {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    optimizer_.rule = rule;
    optimizer_.weight_decay = 0.001f;
    options_.epochs = 2;
    for (const char* model : {"mlp", "cnn"}) {
      const auto here = MakeNetwork(model, 16);
      RecordingClient client(0, 1, *BindLayers(here.get(), &state_),
                             optimizer_);
      ASSERT_TRUE(Train(options_, data_, here.get(), &state_, &client).ok());
      const auto there = MakeNetwork(model, 16);
      const uint32_t initial = ParameterChecksum(*there);
      const auto standalone = Standalone(there.get());
      ASSERT_TRUE(
          Train(options_, data_, there.get(), &state_, standalone.get()).ok());
      EXPECT_EQ(ParameterChecksum(*here), ParameterChecksum(*there)) << model;
      EXPECT_NE(ParameterChecksum(*here), initial) << model;
    }
  }
}

TEST_F(TrainerTest, EqualSeedsGiveEqualBits) {
  uint32_t checksums[3];
  for (int i = 0; i < 3; ++i) {
    const auto network = MakeNetwork("mlp", 16);
    const auto client = Standalone(network.get());
    options_.seed = i < 2 ? 1 : 2;
    ASSERT_TRUE(
        Train(options_, data_, network.get(), &state_, client.get()).ok());
    checksums[i] = ParameterChecksum(*network);
  }
  EXPECT_EQ(checksums[0], checksums[1]);
  EXPECT_NE(checksums[0], checksums[2]);
}

TEST_F(TrainerTest, LossFallsAndAccuracyRises) {
  const auto network = MakeNetwork("mlp", 16);
  const auto accuracy = [&] {
    return Accuracy(data_.train, data_.normalisation, network.get());
  };
  EXPECT_LT(accuracy(), 0.4);
  std::vector<double> losses;
  options_.epochs = 20;
  options_.progress_interval = absl::ZeroDuration();
  options_.progress = [&](const TrainProgress& progress) {
    losses.push_back(progress.loss);
  };
  const auto client = Standalone(network.get());
  const auto result =
      Train(options_, data_, network.get(), &state_, client.get());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(losses.size(), 100u);
  EXPECT_LT(result->train_loss, losses.front() / 4);
  EXPECT_GT(accuracy(), 0.95);
}

TEST_F(TrainerTest, TimesAddUpOnAnInjectedClock) {
  const auto network = MakeNetwork("mlp", 40);
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  // The clock advances by a second at each read. Train reads it once at its
  // begin and at its end, and three times in a step: at the begin, after
  // forward, and after backward. Each step but the first waits for the three
  // layers of the step before in its forward: with three reads each, before and
  // after the wait and after the update. At the end, one wait for all of them
  // takes two more.
  int64_t seconds = 0;
  options_.now = [&] { return absl::Seconds(seconds++); };
  std::vector<TrainProgress> progress;
  options_.progress = [&](const TrainProgress& p) { progress.push_back(p); };
  options_.progress_interval = absl::Seconds(13);
  options_.epochs = 2;
  const absl::StatusOr<TrainResult> result =
      Train(options_, data_, network.get(), &state_, &client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->steps, 4);
  EXPECT_EQ(result->forward, absl::Seconds(4 + 3 * 3));
  EXPECT_EQ(result->backward, absl::Seconds(4 + 3 * 3 + 1));
  EXPECT_EQ(result->wait, absl::Seconds(3 * 3 + 1));
  EXPECT_EQ(result->total, absl::Seconds(43));

  // Steps end 3, 15, 27 and 39 seconds after the start. Progress is due at the
  // first end at least 13 seconds after the last progress, and after the last
  // step.
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].step, 2);
  EXPECT_EQ(progress[0].epoch, 1);
  EXPECT_EQ(progress[0].images_per_second, 80.0 / 15.0);
  EXPECT_EQ(progress[1].step, 4);
  EXPECT_EQ(progress[1].steps, 4);
  EXPECT_EQ(progress[1].epoch, 2);
  EXPECT_EQ(progress[1].epochs, 2);
  EXPECT_EQ(progress[1].images_per_second, 80.0 / 24.0);
  EXPECT_GT(progress[1].loss, 0.0);
  // Both are the mean loss of the last two steps.
  EXPECT_EQ(progress[1].loss, result->train_loss);
}

TEST_F(TrainerTest, DivergingLossNamesStepAndEpoch) {
  const auto network = MakeNetwork("mlp", 40);
  optimizer_.learning_rate = 1e30f;
  options_.epochs = 5;
  const auto client = Standalone(network.get());
  const absl::Status status =
      Train(options_, data_, network.get(), &state_, client.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex(
                  "the loss is -?(nan|inf) in step [12] \\(epoch [12] of 5\\)"
                  ": is the learning rate too high\\?"));
}

// The worker ends the job, because a worker in its place would get the same
// loss, and the others would wait for it.
TEST_F(TrainerTest, DivergingLossEndsTheJobForAllWorkers) {
  const auto network = MakeNetwork("mlp", 40);
  network->parameters(0)[0] = NAN;
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  const absl::Status status =
      Train(options_, data_, network.get(), &state_, &client).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(client.calls, ElementsAre("abort"));
}

// No other process sees an update of the caller, so the trainer looks at it.
TEST_F(TrainerTest, UpdateThatOverflowsEndsTheJob) {
  optimizer_.learning_rate = 3e38f;
  optimizer_.weight_decay = 3e38f;
  const auto network = MakeNetwork("mlp", 40);
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_), optimizer_);
  const absl::Status status =
      Train(options_, data_, network.get(), &state_, &client).status();
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("layer fc[123], step 0: the update by the mean "
                            "gradient of all workers has a NaN or an infinity "
                            "at element [0-9]+ of [0-9]+"));
  EXPECT_EQ(client.calls.back(), "abort");
}

// A job that skips steps with a NaN goes on.
TEST_F(TrainerTest, PassWithoutAFiniteLossHasNoMeanLoss) {
  const auto network = MakeNetwork("mlp", 40);
  network->parameters(0)[0] = NAN;
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  client.job.may_skip = true;
  const auto result = Train(options_, data_, network.get(), &state_, &client);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::isnan(result->train_loss)) << result->train_loss;
}

TEST_F(TrainerTest, ResultsOfTwoCallsAreAddedUp) {
  TrainResult first;
  first.steps = 5;
  first.last_step = 4;
  first.skipped = 1;
  first.images = 40;
  first.train_loss = 2.0;
  first.total = absl::Seconds(8);
  TrainResult second = first;
  second.last_step = 6;
  second.train_loss = 1.0;
  second.Add(first);
  EXPECT_EQ(second.steps, 10);
  EXPECT_EQ(second.last_step, 6);
  EXPECT_EQ(second.skipped, 2);
  EXPECT_EQ(second.images, 80);
  EXPECT_EQ(second.train_loss, 1.0);
  EXPECT_EQ(second.total, absl::Seconds(16));
  // The job went back to a checkpoint of its last step.
  TrainResult none;
  none.train_loss = NAN;
  none.Add(TrainResult());
  EXPECT_TRUE(std::isnan(none.train_loss));
  none.Add(second);
  EXPECT_EQ(none.steps, 10);
  EXPECT_EQ(none.last_step, 6);
  EXPECT_EQ(none.train_loss, 1.0);
}

TEST_F(TrainerTest, SkippedStepsChangeNoParameters) {
  options_.epochs = 1;
  for (const bool skips : {false, true}) {
    const auto network = MakeNetwork("mlp", 40);
    RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
    client.job.may_skip = skips;
    const auto parameters = network->parameters(0);
    const std::vector<float> before(parameters.begin(), parameters.end());
    const auto result = Train(options_, data_, network.get(), &state_, &client);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<float> after(parameters.begin(), parameters.end());
    EXPECT_EQ(after == before, skips);
    EXPECT_EQ(result->skipped, skips ? result->steps : 0);
  }
}

TEST_F(TrainerTest, ErrorsOfTheClientEndTheTraining) {
  const auto network = MakeNetwork("cnn", 40);
  RecordingClient client(0, 1, *BindLayers(network.get(), &state_));
  client.push_status = UnavailableError("shard 1 is gone");
  EXPECT_EQ(Train(options_, data_, network.get(), &state_, &client).status(),
            client.push_status);
  EXPECT_THAT(client.calls, ElementsAre("factors fc2 0"));

  client.calls.clear();
  client.push_status = absl::OkStatus();
  client.wait_status = DeadlineExceededError("worker 3 is missing");
  EXPECT_EQ(Train(options_, data_, network.get(), &state_, &client).status(),
            client.wait_status);
  EXPECT_EQ(client.calls.back(), "wait conv1 1");
}

TEST_F(TrainerTest, BadOptionsAndDataThatDoNotFitAreRefused) {
  const auto network = MakeNetwork("mlp", 40);
  const auto client = Standalone(network.get());
  const auto message = [&](const TrainerOptions& options,
                           const DataSplit& data) {
    const absl::Status status =
        Train(options, data, network.get(), &state_, client.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  TrainerOptions options = options_;
  options.epochs = 0;
  EXPECT_THAT(message(options, data_), HasSubstr("epochs is 0"));
  options = options_;
  options.progress_interval = -absl::Seconds(1);
  EXPECT_THAT(message(options, data_), HasSubstr("progress_interval is -1s"));

  DataSplit data = data_;
  data.train.image = {14, 56, 1};
  EXPECT_THAT(message(options_, data),
              HasSubstr("images are 14x56x1, the network takes 28x28x1"));
  data = data_;
  data.train.labels[5] = 10;
  EXPECT_THAT(message(options_, data),
              HasSubstr("labels go up to 10, the network has 10 classes"));
  data = data_;
  Truncate(39, &data.train);
  EXPECT_THAT(message(options_, data),
              HasSubstr("batch is 40, must be in [1, 39]"));
}

TEST_F(TrainerTest, AccuracyIncludesAnIncompleteLastBatch) {
  const auto network = MakeNetwork("mlp", 16);
  for (int layer = 0; layer < 3; ++layer) {
    for (float& value : network->parameters(layer)) value = 0.0f;
  }
  // The network predicts class 4 for every image.
  network->parameters(2)[10 * 128 + 4] = 1.0f;
  int64_t fours = 0;
  for (uint8_t label : data_.test.labels) fours += label == 4;
  EXPECT_EQ(Accuracy(data_.test, data_.normalisation, network.get()),
            static_cast<double>(fours) / 20.0);
  EXPECT_EQ(Accuracy(Dataset(), data_.normalisation, network.get()), 0.0);
}

TEST_F(TrainerTest, ChecksumCoversEveryParameter) {
  const auto network = MakeNetwork("mlp", 1);
  const uint32_t checksum = ParameterChecksum(*network);
  for (int layer = 0; layer < 3; ++layer) {
    float& last = network->parameters(layer).back();
    const float before = last;
    last += 1.0f;
    EXPECT_NE(ParameterChecksum(*network), checksum) << layer;
    last = before;
  }
  EXPECT_EQ(ParameterChecksum(*network), checksum);
}

}  // namespace
}  // namespace nereus
