#include "tests/worker/layer_checks.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/compute/factor_gradient.h"
#include "worker/trainer/network.h"
#include "worker/trainer/standalone_client.h"
#include "worker/trainer/trainer.h"

namespace nereus {
namespace {

// Value of a buffer that the layer must overwrite completely, or must not
// touch.
constexpr float kGarbage = 12345.0f;

// Returns L, as ExpectExactGradients defines it.
double Probe(int64_t images, const std::vector<float>& input,
             const std::vector<float>& parameters,
             const std::vector<float>& output_gradient, Layer* layer) {
  std::vector<float> output(output_gradient.size(), kGarbage);
  layer->Forward(images, input.data(), parameters.data(), output.data());
  double sum = 0.0;
  for (size_t i = 0; i < output.size(); ++i) {
    sum += double{output[i]} * output_gradient[i];
  }
  return sum;
}

// Changes the elements of `variable` one by one, and compares `gradient` with
// the differences of `probe`.
template <typename F>
void ExpectDifferences(const char* what, const std::vector<float>& gradient,
                       std::vector<float>* variable, F probe) {
  ASSERT_EQ(gradient.size(), variable->size());
  for (size_t i = 0; i < variable->size(); ++i) {
    const float value = (*variable)[i];
    (*variable)[i] = value + 1.0f;
    const double above = probe();
    (*variable)[i] = value - 1.0f;
    const double below = probe();
    (*variable)[i] = value;
    ASSERT_EQ(2.0 * gradient[i], above - below) << what << " " << i;
  }
}

}  // namespace

std::vector<float> RandomIntegers(int64_t count, int magnitude,
                                  Random* random) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random->Below(2 * magnitude + 1)) -
            static_cast<float>(magnitude);
  }
  return values;
}

std::vector<float> ShuffledIntegers(int64_t count, float factor,
                                    Random* random) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = factor * i;
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(values[i], values[random->Below(i + 1)]);
  }
  return values;
}

void ExpectExactGradients(int64_t images, const std::vector<float>& input,
                          Random* random, Layer* layer) {
  const LayerSpec spec = layer->Spec(images);
  std::vector<float> x = input;
  std::vector<float> parameters = RandomIntegers(spec.parameters, 3, random);
  const std::vector<float> output_gradient =
      RandomIntegers(images * layer->output().length(), 3, random);
  const auto probe = [&] {
    return Probe(images, x, parameters, output_gradient, layer);
  };

  probe();  // Backward needs a Forward before it.
  std::vector<float> gradient(spec.parameters, kGarbage);
  std::vector<float> input_gradient(x.size(), kGarbage);
  layer->Backward(images, x.data(), parameters.data(), output_gradient.data(),
                  gradient.data(), input_gradient.data());

  // Runs Forward again: Backward may overwrite the values that Forward saved
  // for it.
  probe();
  std::vector<float> again(spec.parameters, kGarbage);
  layer->Backward(images, x.data(), parameters.data(), output_gradient.data(),
                  again.data(), nullptr);
  EXPECT_EQ(again, gradient) << "depends on whether there is an input gradient";

  if (layer->has_factors()) {
    EXPECT_EQ(gradient, std::vector<float>(spec.parameters, kGarbage));
    FactorGradient(spec.rows, spec.m, spec.n, /*bias=*/true, 1.0f,
                   output_gradient.data(), x.data(), gradient.data());
  }
  ExpectDifferences("input", input_gradient, &x, probe);
  ExpectDifferences("parameter", gradient, &parameters, probe);
}

double TrainedAccuracy(const std::string& model, const DataSplit& data,
                       const OptimizerOptions& optimizer, int64_t batch,
                       int64_t epochs) {
  absl::StatusOr<std::unique_ptr<Network>> network =
      Network::Create(model, data.train.image, data.classes(), batch);
  EXPECT_TRUE(network.ok()) << network.status();
  (*network)->Initialize(1);
  OptimizerState state;
  absl::StatusOr<std::unique_ptr<Client>> client =
      StandaloneClient::Create(optimizer, *BindLayers(network->get(), &state));
  EXPECT_TRUE(client.ok()) << client.status();
  TrainerOptions options;
  options.epochs = epochs;
  const absl::StatusOr<TrainResult> result =
      Train(options, data, network->get(), &state, client->get());
  EXPECT_TRUE(result.ok()) << result.status();
  return Accuracy(data.test, data.normalisation, network->get());
}

}  // namespace nereus
