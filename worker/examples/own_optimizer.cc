// An optimizer of your own: SGD with momentum. The program binds its velocity
// as state of the optimizer, so the velocity is in the job's checkpoints, and a
// restarted job goes on with it.
//
//   nereusctl run -np 2 --checkpoint-dir=line
//       --restore=latest -- own_optimizer 200

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "worker/public/client.h"

namespace {

constexpr float kLearningRate = 0.02f;
constexpr float kMomentum = 0.9f;
// Trains `line` with this worker's example of a step.
absl::Status DoStep(nereus::Client& client, const nereus::StepInfo& step,
                    std::vector<float>& line, std::vector<float>& velocity,
                    std::vector<float>& gradient) {
  const int64_t example = step.contributions_before + step.position;
  const float x = static_cast<float>(example % 7) - 3.0f;
  const float error = line[0] * x + line[1] - (3.0f * x + 1.0f);
  gradient = {error * x, error};
  NEREUS_TRY(client.Push(/*layer=*/0, step.step, absl::MakeSpan(gradient)));
  NEREUS_TRY(client.WaitAll(step.step));
  if (client.Skipped(step.step)) return absl::OkStatus();

  // Each worker makes the same update from the same mean, so replicas stay
  // equal.
  const absl::Span<const float> mean = NEREUS_TRY(client.Mean(/*layer=*/0));
  for (size_t i = 0; i < line.size(); ++i) {
    velocity[i] = kMomentum * velocity[i] + mean[i];
    line[i] -= kLearningRate * velocity[i];
  }
  return absl::OkStatus();
}

absl::Status Train(int64_t steps) {
  // The model: y = line[0] * x + line[1]. Declared before the client, because
  // the client uses this memory until it is destroyed.
  std::vector<float> line = {0.0f, 0.0f};
  std::vector<float> velocity(line.size(), 0.0f);
  std::vector<float> gradient(line.size());

  nereus::LayerSpec layer;
  layer.name = "line";
  layer.kind = nereus::LayerKind::kVector;
  layer.m = 1;
  layer.n = 2;
  layer.parameters = 2;
  layer.rows = 1;

  nereus::ClientOptions options =
      NEREUS_TRY(nereus::ClientOptions::FromEnvironment());
  // Connect fails if the job runs the optimizer on its servers.
  options.optimizer = nereus::OptimizerPlace::kWorker;
  // Values that must be equal on all workers. Only this program knows them: if
  // another worker has other values, Connect fails.
  options.settings = {{"learning-rate", std::to_string(kLearningRate)},
                      {"momentum", std::to_string(kMomentum)}};
  nereus::LayerBinding binding;
  binding.spec = layer;
  binding.parameters = absl::MakeSpan(line);
  // Memory of the state. A worker that joins later receives the job's state
  // here, and so does each worker after a restart of the job.
  binding.state = absl::MakeSpan(velocity);
  auto joined = nereus::Client::Connect(options, {binding});
  // kOutOfRange: the job is finished, so nothing is left to do.
  if (absl::IsOutOfRange(joined.status())) return absl::OkStatus();
  const auto client = NEREUS_TRY(std::move(joined));

  for (;;) {
    const nereus::StepInfo step = NEREUS_TRY(client->BeginStep());
    const bool is_done = step.step >= steps;
    const absl::Status status =
        is_done ? client->Leave()
                : DoStep(*client, step, line, velocity, gradient);
    if (absl::IsOutOfRange(status)) continue;  // The job has gone back.
    NEREUS_TRY(status);
    if (is_done) break;
  }
  std::cout << "after " << steps << " steps: y = " << line[0] << " x + "
            << line[1] << std::endl;
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t steps = 0;
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &steps) || steps < 1) {
    std::cerr << "Usage: own_optimizer STEPS" << std::endl;
    return 2;
  }
  absl::Status status = Train(steps);
  // kCancelled: this worker stood still for so long that the job went on
  // without it. It joins again.
  while (absl::IsCancelled(status)) status = Train(steps);
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
