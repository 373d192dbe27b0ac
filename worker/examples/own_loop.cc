// A training loop of your own: fits y = 3 x + 1. The servers run the optimizer.
//
//   nereusctl run -np 2 -- own_loop

#include <cstdint>
#include <iomanip>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "worker/public/client.h"

namespace {

constexpr int64_t kSteps = 1000;
constexpr int64_t kBatch = 4;

// Trains `line` with this worker's examples of a step.
absl::Status DoStep(nereus::Client& client, const nereus::StepInfo& step,
                    const std::vector<float>& line,
                    std::vector<float>& gradient) {
  // Each worker takes its own part of the step's examples.
  const int64_t first = (step.contributions_before + step.position) * kBatch;
  float loss = 0.0f;
  gradient = {0.0f, 0.0f};
  for (int64_t i = first; i < first + kBatch; ++i) {
    const float x = static_cast<float>(i % 7) - 3.0f;
    const float error = line[0] * x + line[1] - (3.0f * x + 1.0f);
    loss += error * error / 2 / kBatch;
    gradient[0] += error * x / kBatch;
    gradient[1] += error / kBatch;
  }
  if (step.step % 200 == 0) {
    std::cout << "step " << step.step << ": loss " << loss << std::endl;
  }
  NEREUS_TRY(client.Push(/*layer=*/0, step.step, absl::MakeSpan(gradient)));
  return client.WaitAll(step.step);
}

absl::Status Train() {
  // The model: y = line[0] * x + line[1]. Declared before the client, because
  // the client uses the memory of `line` and `gradient` until it is destroyed.
  std::vector<float> line = {0.0f, 0.0f};
  std::vector<float> gradient(line.size());

  nereus::LayerSpec layer;
  layer.name = "line";
  layer.kind = nereus::LayerKind::kVector;
  layer.m = 1;
  layer.n = 2;
  layer.parameters = 2;
  layer.rows = kBatch;

  // Reads environment variables that `nereusctl run` sets, such as
  // NEREUS_COORDINATOR, the HOST:PORT of the coordinator.
  nereus::ClientOptions options =
      NEREUS_TRY(nereus::ClientOptions::FromEnvironment());
  options.settings = {{"batch", std::to_string(kBatch)}};
  auto joined =
      nereus::Client::Connect(options, {{layer, absl::MakeSpan(line)}});
  // kOutOfRange: the job is finished, so nothing is left to do.
  if (absl::IsOutOfRange(joined.status())) return absl::OkStatus();
  const auto client = NEREUS_TRY(std::move(joined));

  for (;;) {
    const nereus::StepInfo step = NEREUS_TRY(client->BeginStep());
    const bool is_done = step.step >= kSteps;
    const absl::Status status =
        is_done ? client->Leave() : DoStep(*client, step, line, gradient);
    // kOutOfRange: the job has lost a server and gone back to its last
    // checkpoint. The next BeginStep writes the parameters of that checkpoint.
    if (absl::IsOutOfRange(status)) continue;
    NEREUS_TRY(status);
    if (is_done) break;
  }
  std::cout << std::fixed << std::setprecision(2) << "y = " << line[0]
            << " x + " << line[1] << std::endl;
  return absl::OkStatus();
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
