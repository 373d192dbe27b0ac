// A network of two fully connected layers. For each layer, the program pushes
// two factors: the gradient of the layer's output, and the layer's input. The
// client multiplies them, so the program computes no weight gradient.
//
//   nereusctl run -np 2 --learning-rate=0.1 -- two_layers

#include <cmath>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "worker/public/client.h"

namespace {

constexpr int64_t kSteps = 400;
constexpr int64_t kRows = 16;  // Examples of one worker in one step.
constexpr int64_t kInputs = 2;
constexpr int64_t kHidden = 32;

// Fully connected layer: output = input * weight^T + bias, row-major.
struct Layer {
  Layer(const std::string& name, int64_t outputs, int64_t inputs)
      : output_gradient(kRows * outputs), input(kRows * inputs) {
    spec.name = name;
    spec.kind = nereus::LayerKind::kFullyConnected;
    spec.m = outputs;
    spec.n = inputs;
    spec.parameters = outputs * inputs + outputs;  // The weight, then the bias.
    spec.rows = kRows;
    spec.has_factors = true;  // Train calls PushFactors, never Push.
    // The seed does not matter: the first worker's values become the job's.
    std::minstd_rand random(7);
    std::uniform_real_distribution<float> values(-1.0f, 1.0f);
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      parameters.push_back(values(random) / std::sqrt(float(inputs)));
    }
    parameters.resize(spec.parameters, 0.0f);
  }

  void Forward(std::vector<float>& output) const {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < spec.m; ++i) {
        float sum = parameters[spec.m * spec.n + i];
        for (int64_t j = 0; j < spec.n; ++j) {
          sum += parameters[i * spec.n + j] * input[row * spec.n + j];
        }
        output[row * spec.m + i] = sum;
      }
    }
  }

  nereus::LayerSpec spec;
  std::vector<float> parameters;
  std::vector<float> output_gradient;  // kRows x outputs
  std::vector<float> input;            // kRows x inputs
};

// Writes kRows examples to `hidden.input`, from example number `first` on.
// Returns the values that the network must learn: the products a * b.
std::vector<float> MakeRows(int64_t first, Layer& hidden) {
  std::vector<float> expected(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const float a = std::sin(static_cast<float>(first + row));
    const float b = std::cos(2.0f * static_cast<float>(first + row));
    hidden.input[row * kInputs] = a;
    hidden.input[row * kInputs + 1] = b;
    expected[row] = a * b;
  }
  return expected;
}

// Computes the gradients of the mean loss with respect to the outputs of both
// layers, the last layer first. The output of `hidden` is its value before
// tanh. Returns the loss.
float Backward(const std::vector<float>& predicted,
               const std::vector<float>& expected, Layer& hidden,
               Layer& output) {
  float loss = 0.0f;
  for (int64_t row = 0; row < kRows; ++row) {
    const float error = predicted[row] - expected[row];
    loss += error * error / 2 / kRows;
    output.output_gradient[row] = error / kRows;
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t j = 0; j < kHidden; ++j) {
      const float activation = output.input[row * kHidden + j];
      hidden.output_gradient[row * kHidden + j] = output.output_gradient[row] *
                                                  output.parameters[j] *
                                                  (1 - activation * activation);
    }
  }
  return loss;
}

// Trains both layers with this worker's examples of a step.
absl::Status DoStep(nereus::Client& client, const nereus::StepInfo& step,
                    Layer& hidden, Layer& output) {
  // Forward: y = tanh(input * hidden) * output.
  std::vector<float> predicted(kRows);
  const std::vector<float> expected =
      MakeRows((step.contributions_before + step.position) * kRows, hidden);
  hidden.Forward(output.input);
  for (float& value : output.input) value = std::tanh(value);
  output.Forward(predicted);

  const float loss = Backward(predicted, expected, hidden, output);
  if (step.step % 100 == 0) {
    std::cout << "step " << step.step << ": loss " << loss << std::endl;
  }

  // A caller that runs the optimizer passes memory for the mean gradient as the
  // last argument. Here the job runs the optimizer.
  NEREUS_TRY(client.PushFactors(1, step.step,
                                {output.output_gradient, output.input},
                                /*gradient=*/{}));
  NEREUS_TRY(client.PushFactors(0, step.step,
                                {hidden.output_gradient, hidden.input}, {}));
  return client.WaitAll(step.step);
}

absl::Status Train() {
  Layer hidden("hidden", kHidden, kInputs);
  Layer output("output", 1, kHidden);

  // Reads environment variables that `nereusctl run` sets, such as
  // NEREUS_COORDINATOR, the HOST:PORT of the coordinator.
  nereus::ClientOptions options =
      NEREUS_TRY(nereus::ClientOptions::FromEnvironment());
  auto joined = nereus::Client::Connect(
      options, {{hidden.spec, absl::MakeSpan(hidden.parameters)},
                {output.spec, absl::MakeSpan(output.parameters)}});
  // kOutOfRange: the job is finished, so nothing is left to do.
  if (absl::IsOutOfRange(joined.status())) return absl::OkStatus();
  const auto client = NEREUS_TRY(std::move(joined));

  for (;;) {
    const nereus::StepInfo step = NEREUS_TRY(client->BeginStep());
    const bool is_done = step.step >= kSteps;
    const absl::Status status =
        is_done ? client->Leave() : DoStep(*client, step, hidden, output);
    // kOutOfRange: the job has gone back to a checkpoint, and the next
    // BeginStep says which step is next.
    if (absl::IsOutOfRange(status)) continue;
    NEREUS_TRY(status);
    if (is_done) return absl::OkStatus();
  }
}

}  // namespace

int main() {
  absl::Status status = Train();
  // kCancelled: this worker stood still for so long that the job went on
  // without it. It joins again.
  while (absl::IsCancelled(status)) status = Train();
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
