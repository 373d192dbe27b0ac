// A worker that only does steps, for recovery_benchmark.py. It prints a line
// for each finished step, with the time of CLOCK_MONOTONIC.
//
//   recovery_worker --coordinator=127.0.0.1:7000 --parameters=1000000
//
//   joined rank=4 seconds=8214.203118
//   step=17 workers=4 seconds=8214.391740
//
// Each worker's gradient is 1 everywhere. With --update=sgd --momentum=0
// --weight-decay=0 --learning-rate=0.0009765625 each parameter is exactly
// -(step + 1) / 1024 after a step, independent of the members and of deaths.
// So a contribution that is lost or counted twice shows. The program checks
// some values of each frame after each step, and all values at its end.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/flags/flags.h"
#include "worker/public/client.h"

namespace nereus {
namespace {

constexpr float kLearningRate = 1.0f / 1024;
constexpr int64_t kRows = 32;  // A power of two, so 1 / 32 is exact.
constexpr int64_t kInputs = 1000;

// A prime below the number of values in a frame: each frame is checked at other
// places.
constexpr size_t kCheckStride = 1009;

struct WorkerOptions {
  ClientOptions client;
  int layers = 3;
  int64_t parameters = 1000000;  // Number of parameters of each layer.
  int sleep_ms = 0;
  int64_t steps = 0;
};

double Seconds() {
  return absl::ToDoubleSeconds(SteadyNow() - absl::UnixEpoch());
}

// Returns layers that go through the servers, and a last, fully connected layer
// that goes as the planner decides.
class Model {
 public:
  explicit Model(const WorkerOptions& options)
      : outputs_(options.parameters / kInputs),
        output_gradient_(kRows * outputs_, 1.0f / kRows),
        input_(kRows * kInputs, 1.0f) {
    const int64_t length = outputs_ * kInputs;
    for (int i = 0; i < options.layers; ++i) {
      const bool is_last = i + 1 == options.layers;
      specs_.push_back(
          {absl::StrCat("layer", i),
           is_last ? LayerKind::kFullyConnected : LayerKind::kConvolution,
           outputs_, kInputs, length, kRows,
           /*has_factors=*/is_last});
      parameters_.emplace_back(length, 0.0f);
      gradients_.emplace_back(length, 1.0f);
    }
  }

  std::vector<LayerBinding> Bind() {
    std::vector<LayerBinding> layers;
    for (size_t i = 0; i < specs_.size(); ++i) {
      layers.push_back({specs_[i], absl::MakeSpan(parameters_[i])});
    }
    return layers;
  }

  absl::Status Push(Client& client, int64_t step) {
    for (int layer = static_cast<int>(specs_.size()) - 1; layer >= 0; --layer) {
      if (specs_[layer].kind == LayerKind::kFullyConnected) {
        NEREUS_TRY(client.PushFactors(layer, step, {output_gradient_, input_},
                                      /*gradient=*/{}));
      } else {
        NEREUS_TRY(client.Push(layer, step, absl::MakeSpan(gradients_[layer])));
      }
    }
    return absl::OkStatus();
  }

  // Returns OK if each `stride`-th parameter has its expected value after
  // `step`.
  absl::Status Check(int64_t step, size_t stride) const {
    const float expected = -static_cast<float>(step + 1) * kLearningRate;
    for (size_t layer = 0; layer < specs_.size(); ++layer) {
      const std::vector<float>& values = parameters_[layer];
      for (size_t i = 0; i < values.size(); i += stride) {
        if (values[i] == expected) continue;
        return InternalError("after step ", step, " parameter ", i, " of ",
                             specs_[layer].name, " is ", values[i],
                             ", must be ", expected);
      }
    }
    return absl::OkStatus();
  }

 private:
  const int64_t outputs_;
  std::vector<LayerSpec> specs_;
  std::vector<std::vector<float>> parameters_;
  std::vector<std::vector<float>> gradients_;
  std::vector<float> output_gradient_;
  std::vector<float> input_;
};

// Takes part in steps until it has done its number of steps.
absl::Status DoSteps(const WorkerOptions& options, Model& model,
                     Client& client) {
  int64_t done = 0;
  int64_t last_step = -1;
  while (options.steps == 0 || done < options.steps) {
    const StepInfo step = NEREUS_TRY(client.BeginStep());
    absl::SleepFor(absl::Milliseconds(options.sleep_ms));
    absl::Status status = model.Push(client, step.step);
    if (status.ok()) status = client.WaitAll(step.step);
    if (absl::IsOutOfRange(status)) continue;  // The job went back.
    NEREUS_TRY(status);
    const double now = Seconds();
    NEREUS_TRY(model.Check(step.step, kCheckStride));
    std::printf("step=%" PRId64 " workers=%d seconds=%.6f\n", step.step,
                step.workers, now);
    std::fflush(stdout);
    last_step = step.step;
    ++done;
  }
  return model.Check(last_step, /*stride=*/1);
}

absl::Status JoinAndWork(const WorkerOptions& options) {
  Model model(options);
  const std::unique_ptr<Client> client =
      NEREUS_TRY(Client::Connect(options.client, model.Bind()));
  std::printf("joined rank=%d seconds=%.6f\n", client->traits().rank,
              Seconds());
  std::fflush(stdout);
  absl::Status status;
  do {
    status = DoSteps(options, model, *client);
    if (status.ok()) status = client->Leave();
  } while (absl::IsOutOfRange(status));  // The job went back in the meantime.
  return status;
}

absl::Status Run(const WorkerOptions& options) {
  absl::Status status = JoinAndWork(options);
  while (absl::IsCancelled(status)) {
    NEREUS_LOG(Warning) << status.message() << "; joining again";
    status = JoinAndWork(options);
  }
  return status;
}

void ExitOnSignal(int signal_number) { _exit(128 + signal_number); }

int Main(int argc, char** argv) {
  WorkerOptions options;
  CLI::App app("Does steps, and says when each is finished.");
  AddFlag(app, "coordinator", options.client.coordinator_address,
          "HOST:PORT of the coordinator");
  AddFlag(app, "layers", options.layers, "layers of the model")
      ->check(CLI::Range(1, 1000));
  AddFlag(app, "parameters", options.parameters,
          "parameters per layer, rounded down to thousands")
      ->check(CLI::Range(kInputs, int64_t{1} << 30));
  AddFlag(app, "sleep-ms", options.sleep_ms,
          "milliseconds of sleep per step, instead of computing")
      ->check(CLI::Range(0, 60000));
  AddFlag(app, "steps", options.steps,
          "leaves after this number of steps; 0: never leaves")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  if (const int code = ParseFlags(app, argc, argv); code >= 0) return code;
  ChangeLogContext([](LogContext& context) { context.role = "worker"; });
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, ExitOnSignal);
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  NEREUS_LOG(Error) << status.ToString();
  return 1;
}

}  // namespace
}  // namespace nereus

int main(int argc, char** argv) { return nereus::Main(argc, argv); }
