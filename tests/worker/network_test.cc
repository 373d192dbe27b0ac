#include "worker/trainer/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/compute/factor_gradient.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::HasSubstr;

std::unique_ptr<Network> MakeNetwork(const std::string& model,
                                     const ImageShape& image, int64_t batch) {
  absl::StatusOr<std::unique_ptr<Network>> network =
      Network::Create(model, image, /*classes=*/10, batch);
  EXPECT_TRUE(network.ok()) << network.status();
  return *std::move(network);
}

// A batch of random images with random labels.
struct Batch {
  Batch(const Network& network, uint64_t seed) {
    Random random(seed);
    images.resize(network.batch() * network.image().length());
    for (float& value : images) {
      value = static_cast<float>(random.Uniform() * 2.0 - 1.0);
    }
    for (int64_t i = 0; i < network.batch(); ++i) {
      labels.push_back(static_cast<int32_t>(random.Below(network.classes())));
    }
  }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

absl::Status Ignore(int /*layer*/) { return absl::OkStatus(); }

// Returns the gradient of every layer after Backward. Factors are multiplied
// first.
std::vector<std::vector<float>> Gradients(Network* network) {
  std::vector<std::vector<float>> gradients;
  for (size_t i = 0; i < network->specs().size(); ++i) {
    const int layer = static_cast<int>(i);
    const LayerSpec& spec = network->specs()[i];
    const absl::Span<float> dense = network->gradient(layer);
    std::vector<float> gradient(dense.begin(), dense.end());
    if (network->has_factors(layer)) {
      const Factors factors = network->factors(layer);
      FactorGradient(spec.rows, spec.m, spec.n, /*bias=*/true, 1.0f,
                     factors.output_gradient.data(), factors.input.data(),
                     gradient.data());
    }
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

TEST(NetworkTest, MlpHasThreeFullyConnectedLayers) {
  const auto network = MakeNetwork("mlp", {28, 28, 1}, 32);
  const std::vector<LayerSpec> expected = {
      {"fc1", LayerKind::kFullyConnected, 256, 784, 256 * 784 + 256, 32, true},
      {"fc2", LayerKind::kFullyConnected, 128, 256, 128 * 256 + 128, 32, true},
      {"fc3", LayerKind::kFullyConnected, 10, 128, 10 * 128 + 10, 32, true},
  };
  EXPECT_EQ(network->specs(), expected);
  EXPECT_TRUE(ValidateLayers(network->specs()).ok());
}

TEST(NetworkTest, CnnHasTheSizesOfLeNet) {
  const auto network = MakeNetwork("cnn", {28, 28, 1}, 32);
  const std::vector<LayerSpec> expected = {
      {"conv1", LayerKind::kConvolution, 20, 25, 520, 32 * 24 * 24},
      {"conv2", LayerKind::kConvolution, 50, 500, 25050, 32 * 8 * 8},
      {"fc1", LayerKind::kFullyConnected, 500, 800, 400500, 32, true},
      {"fc2", LayerKind::kFullyConnected, 10, 500, 5010, 32, true},
  };
  EXPECT_EQ(network->specs(), expected);
  EXPECT_TRUE(ValidateLayers(network->specs()).ok());
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(network->has_factors(layer), layer >= 2);
    EXPECT_EQ(static_cast<int64_t>(network->parameters(layer).size()),
              network->specs()[layer].parameters);
    EXPECT_EQ(static_cast<int64_t>(network->gradient(layer).size()),
              network->specs()[layer].parameters);
  }
}

TEST(NetworkTest, BadArgumentsAreRefusedWithTheirValues) {
  const struct {
    const char* model;
    ImageShape image;
    int64_t classes;
    int64_t batch;
    const char* message;
  } kCases[] = {
      {"rnn", {28, 28, 1}, 10, 32, "unknown model \"rnn\", must be mlp or cnn"},
      {"cnn",
       {15, 28, 1},
       10,
       32,
       "image height for cnn is 15, must be in [16"},
      {"cnn", {28, 15, 1}, 10, 32, "image width for cnn is 15, must be in [16"},
      {"mlp", {0, 28, 1}, 10, 32, "image height for mlp is 0, must be in [1"},
      {"mlp", {28, 28, 0}, 10, 32, "channels of an image is 0"},
      {"mlp", {60000, 60000, 1}, 10, 32, "elements of an image is 3600000000"},
      {"mlp", {28, 28, 1}, 0, 32, "classes is 0, must be in [1, 1000]"},
      {"mlp", {28, 28, 1}, 1001, 32, "classes is 1001"},
      {"mlp", {28, 28, 1}, 10, 0, "batch of 28x28 images is 0, must be in [1"},
      {"mlp", {28, 28, 1}, 10, int64_t{1} << 40, "batch of 28x28 images is"},
  };
  for (const auto& c : kCases) {
    const absl::Status status =
        Network::Create(c.model, c.image, c.classes, c.batch).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(NetworkTest, InitializeDependsOnTheSeedAlone) {
  const auto a = MakeNetwork("cnn", {16, 17, 1}, 2);
  const auto b = MakeNetwork("cnn", {16, 17, 1}, 3);
  const auto other = MakeNetwork("cnn", {16, 17, 1}, 2);
  a->Initialize(7);
  b->Initialize(8);
  // The old parameters and the batch size do not change the result.
  b->Initialize(7);
  other->Initialize(8);
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(a->parameters(layer), b->parameters(layer));
    EXPECT_NE(a->parameters(layer), other->parameters(layer));
  }
}

TEST(NetworkTest, InitialWeightsHaveTheirVarianceAndBiasesAreZero) {
  const auto network = MakeNetwork("mlp", {28, 28, 1}, 1);
  const LayerSpec& spec = network->specs()[0];
  const absl::Span<float> parameters = network->parameters(0);
  absl::c_fill(parameters, 7.0f);
  network->Initialize(1);
  const int64_t weights = spec.m * spec.n;
  double sum = 0.0;
  double squares = 0.0;
  for (int64_t i = 0; i < weights; ++i) {
    sum += parameters[i];
    squares += double{parameters[i]} * parameters[i];
  }
  const double variance = 1.0 / static_cast<double>(spec.n);
  // The bounds are five standard deviations of a mean of independent values.
  // The standard deviation of a value is sqrt(variance), that of the square of
  // a uniform value is sqrt(4 / 5) * variance.
  const double root = std::sqrt(static_cast<double>(weights));
  EXPECT_NEAR(sum / weights, 0.0, 5.0 * std::sqrt(variance) / root);
  EXPECT_NEAR(squares / weights, variance, 5.0 * 0.9 * variance / root);
  for (int64_t i = weights; i < spec.parameters; ++i) {
    EXPECT_EQ(parameters[i], 0.0f);
  }
}

class NetworkModelsTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, NetworkModelsTest,
                         testing::Values("mlp", "cnn"),
                         [](const auto& info) { return info.param; });

// If one layer moves by -h times its gradient g, the loss changes by
// -h * |g|^2. The tests of the layers compare gradients exactly; this test
// shows that the network connects the layers correctly.
TEST_P(NetworkModelsTest, EachLayersGradientPredictsTheLoss) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(ReplayHint(seed));
    const auto network = MakeNetwork(GetParam(), {17, 18, 1}, 3);
    network->Initialize(seed);
    const Batch batch(*network, seed);
    network->Forward(batch.images, batch.labels);
    ASSERT_TRUE(network->Backward(Ignore).ok());
    const std::vector<std::vector<float>> gradients = Gradients(network.get());

    for (size_t layer = 0; layer < gradients.size(); ++layer) {
      const std::vector<float>& gradient = gradients[layer];
      double square = 0.0;
      for (float g : gradient) square += double{g} * g;
      ASSERT_GT(square, 0.0);
      // The loss of about 2 moves by 4e-3 in all. Its rounding of about 2^-22
      // is 1e-4 of that. The second-order errors, from the bends of relu and
      // softmax, are as small.
      const double h = 2e-3 / square;
      const absl::Span<float> parameters =
          network->parameters(static_cast<int>(layer));
      const std::vector<float> before(parameters.begin(), parameters.end());
      double losses[2];
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < gradient.size(); ++i) {
          const double move = side == 0 ? h : -h;
          parameters[i] = static_cast<float>(before[i] + move * gradient[i]);
        }
        losses[side] = network->Forward(batch.images, batch.labels);
      }
      absl::c_copy(before, parameters.begin());
      EXPECT_NEAR((losses[0] - losses[1]) / (2.0 * h * square), 1.0, 0.01)
          << network->specs()[layer].name;
    }
  }
}

// From the callback for a layer on, a client may write the parameters of this
// layer and read its gradient or factors.
TEST_P(NetworkModelsTest, ParametersMayChangeOnceALayerIsReady) {
  const auto network = MakeNetwork(GetParam(), {18, 16, 1}, 4);
  network->Initialize(3);
  const Batch batch(*network, 3);
  network->Forward(batch.images, batch.labels);
  ASSERT_TRUE(network->Backward(Ignore).ok());
  const std::vector<std::vector<float>> expected = Gradients(network.get());

  network->Forward(batch.images, batch.labels);
  std::vector<std::vector<float>> when_ready(expected.size());
  ASSERT_TRUE(network
                  ->Backward([&](int layer) {
                    when_ready[layer] = Gradients(network.get())[layer];
                    for (float& value : network->parameters(layer)) {
                      value = std::numeric_limits<float>::quiet_NaN();
                    }
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(when_ready, expected);
  EXPECT_EQ(Gradients(network.get()), expected) << "changed after the call";
}

// The factors belong to the client until it reports that the layer's round is
// done.
TEST_P(NetworkModelsTest, FactorsStayUntilTheNextForwardHasAwaitedTheirLayer) {
  const auto network = MakeNetwork(GetParam(), {16, 16, 1}, 4);
  network->Initialize(7);
  const Batch first(*network, 1);
  const Batch second(*network, 2);
  network->Forward(first.images, first.labels);
  ASSERT_TRUE(network->Backward(Ignore).ok());
  const auto read = [&](int layer) {
    const Factors factors = network->factors(layer);
    std::vector<float> values(factors.input.begin(), factors.input.end());
    values.insert(values.end(), factors.output_gradient.begin(),
                  factors.output_gradient.end());
    return values;
  };
  std::map<int, std::vector<float>> pushed;
  for (int layer = 0; layer < static_cast<int>(network->specs().size());
       ++layer) {
    if (network->has_factors(layer)) pushed[layer] = read(layer);
  }
  int next = 0;
  const auto loss =
      network->Forward(second.images, second.labels, [&](int layer) {
        EXPECT_EQ(layer, next++);
        for (const auto& [other, values] : pushed) {
          if (other < layer) continue;
          EXPECT_EQ(read(other), values) << other;
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(next, static_cast<int>(network->specs().size()));
}

TEST_P(NetworkModelsTest, PredictTakesAnyCountUpToTheBatch) {
  const auto network = MakeNetwork(GetParam(), {16, 16, 1}, 5);
  network->Initialize(2);
  const Batch batch(*network, 2);
  std::vector<int32_t> all(5);
  network->Predict(batch.images, absl::MakeSpan(all));
  for (int64_t i = 0; i < 5; ++i) {
    int32_t one = -1;
    network->Predict(absl::MakeConstSpan(batch.images).subspan(i * 256, 256),
                     absl::MakeSpan(&one, 1));
    EXPECT_EQ(one, all[i]) << i;
  }
}

}  // namespace
}  // namespace nereus
