#include "worker/trainer/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/gemm.h"
#include "tests/worker/host_training.h"
#include "worker/trainer/batches.h"
#include "worker/trainer/fully_connected.h"
#include "worker/trainer/loss.h"
#include "worker/trainer/network.h"
#include "worker/trainer/standalone_client.h"
#include "worker/trainer/trainer.h"

namespace nereus {
namespace {

TEST(SyntheticTest, SameBitsForTheSameSeed) {
  const Dataset dataset = GenerateSynthetic(1, 50);
  EXPECT_EQ(dataset.image, (ImageShape{28, 28, 1}));
  EXPECT_EQ(dataset.count(), 50);
  EXPECT_EQ(Crc32c(dataset.pixels.data(), dataset.pixels.size()), 0x7a5f56ee);
  EXPECT_EQ(Crc32c(dataset.labels.data(), dataset.labels.size()), 0xbd5a8a35);
  EXPECT_NE(GenerateSynthetic(2, 50).pixels, dataset.pixels);
}

TEST(SyntheticTest, LongerSetBeginsWithTheShorterSet) {
  Dataset longer = GenerateSynthetic(1, 30);
  const Dataset shorter = GenerateSynthetic(1, 20);
  Truncate(20, &longer);
  EXPECT_EQ(longer.pixels, shorter.pixels);
  EXPECT_EQ(longer.labels, shorter.labels);
  EXPECT_EQ(GenerateSynthetic(1, 0).count(), 0);
}

TEST(SyntheticTest, HasAllClassesAndNoImageTwice) {
  const Dataset dataset = GenerateSynthetic(1, 500);
  const std::set<uint8_t> labels(dataset.labels.begin(), dataset.labels.end());
  EXPECT_EQ(labels.size(), 10u);
  std::set<std::vector<uint8_t>> images;
  for (int64_t i = 0; i < 500; ++i) {
    const uint8_t* pixels = dataset.pixels.data() + i * 784;
    images.insert(std::vector<uint8_t>(pixels, pixels + 784));
  }
  EXPECT_EQ(images.size(), 500u);
}

// The bound is a tenth of the images, plus or minus six standard deviations of
// a binomial distribution.
TEST(SyntheticTest, ClassesAreEquallyLikely) {
  const Dataset dataset = GenerateSynthetic(3, 1000);
  std::vector<int> counts(10);
  for (uint8_t label : dataset.labels) ++counts[label];
  for (int count : counts) EXPECT_NEAR(count, 100, 6 * 9.5);
}

// Returns the accuracy of a network that was trained for `epochs` epochs.
double TrainedAccuracy(const std::string& model, const DataSplit& data,
                       int64_t epochs) {
  absl::StatusOr<std::unique_ptr<Network>> network =
      Network::Create(model, data.train.image, data.classes(), /*batch=*/32);
  EXPECT_TRUE(network.ok()) << network.status();
  (*network)->Initialize(1);
  OptimizerState state;
  OptimizerOptions optimizer;
  optimizer.learning_rate = 0.01f;
  absl::StatusOr<std::unique_ptr<Client>> client =
      StandaloneClient::Create(optimizer, BindLayers(network->get(), &state));
  EXPECT_TRUE(client.ok()) << client.status();
  TrainerOptions options;
  options.epochs = epochs;
  const absl::StatusOr<TrainResult> result =
      Train(options, data, network->get(), &state, client->get());
  EXPECT_TRUE(result.ok()) << result.status();
  return Accuracy(data.test, data.normalisation, network->get());
}

// Returns the accuracy of one fully connected layer, by gradient descent.
double LinearAccuracy(const DataSplit& data, int64_t epochs) {
  const int64_t kBatch = 32;
  const std::shared_ptr<Device> cpu = MakeCpuDevice();
  FullyConnected layer(cpu.get(), data.train.image, 10);
  std::vector<float> parameters(layer.Spec(kBatch).parameters);
  std::vector<float> gradient(parameters.size());
  std::vector<float> images(kBatch * 784);
  std::vector<int32_t> labels(kBatch);
  std::vector<float> output(kBatch * 10);
  absl::StatusOr<Batches> batches =
      Batches::Create({data.train.count(), kBatch, 1});
  EXPECT_TRUE(batches.ok()) << batches.status();
  for (int64_t first = 0; first < epochs * data.train.count();
       first += kBatch) {
    CopyExamples(data.train, data.normalisation, batches->Examples(first),
                 absl::MakeSpan(images), absl::MakeSpan(labels));
    layer.Forward(kBatch, images.data(), parameters.data(), output.data());
    SoftmaxCrossEntropy(kBatch, 10, output.data(), labels.data(),
                        output.data());
    FactorGradient(kBatch, 10, 784, true, 1.0f, output.data(), images.data(),
                   gradient.data());
    for (size_t i = 0; i < gradient.size(); ++i) {
      parameters[i] -= 0.01f * gradient[i];
    }
  }
  int64_t correct = 0;
  for (uint32_t i = 0; i < data.test.count(); ++i) {
    CopyExamples(data.test, data.normalisation, {i},
                 absl::MakeSpan(images).subspan(0, 784),
                 absl::MakeSpan(labels).subspan(0, 1));
    layer.Forward(1, images.data(), parameters.data(), output.data());
    correct += std::max_element(output.begin(), output.begin() + 10) -
                   output.begin() ==
               labels[0];
  }
  return static_cast<double>(correct) / static_cast<double>(data.test.count());
}

TEST(SyntheticTest, ConvolutionsLearnTheDigitsBetterThanALinearClassifier) {
  SetGemmThreads(1);
  const absl::StatusOr<DataSplit> data =
      Split(GenerateSynthetic(1, 5000), /*holdout=*/0.2);
  ASSERT_TRUE(data.ok()) << data.status();
  const double linear = LinearAccuracy(*data, /*epochs=*/20);
  EXPECT_GT(linear, 0.5);
  EXPECT_LT(linear, 0.9);
  // The network makes less than half of the linear classifier's errors.
  const double cnn = TrainedAccuracy("cnn", *data, /*epochs=*/3);
  EXPECT_GT(cnn, 1.0 - (1.0 - linear) / 2);
}

}  // namespace
}  // namespace nereus
