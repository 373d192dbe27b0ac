#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"

namespace nereus {

// Takes part in a job as a model would whose layers compute for known times:
// they are slept, and gradients and factors of the real sizes travel. What is
// measured is the network, and Nereus, and no one's arithmetic.
struct ReplayOptions {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;  // By layer.
  int64_t steps = 1;             // Of the job.
  // Before each forward: a straggler; and in steps that are this worker's
  // position modulo the number of workers, so that each has its turn.
  absl::Duration delay;
  absl::Duration delay_in_turn;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// One worker's run.
struct ReplayResult {
  // From the end of one backward to the end of the next one, by step, from the
  // second step on: with outcomes gathered in the next forward, a step has no
  // other end.
  std::vector<absl::Duration> steps;
};

// A model's memory, and the job that `client` has joined with its bindings.
class Replay {
 public:
  explicit Replay(ReplayOptions options);

  // Parameters that start at 0; they outlive the client.
  std::vector<LayerBinding> Bindings();

  // Until step `steps` is done. Errors: the client's.
  absl::StatusOr<ReplayResult> Run(Client* client);

 private:
  absl::Status Forward(Client* client, const StepInfo& step);
  absl::Status Backward(Client* client, int64_t step);
  absl::Status Push(Client* client, int layer, int64_t step);
  // What a device does that is free from then on; when it is done.
  void Compute(absl::Duration time);

  const ReplayOptions options_;
  std::vector<std::vector<float>> parameters_;        // By layer.
  std::vector<std::vector<float>> gradients_;         // Dense.
  std::vector<std::vector<float>> output_gradients_;  // Fully connected layers.
  std::vector<std::vector<float>> inputs_;
  absl::Time device_free_at_ = absl::InfinitePast();
};

// One line: {"event": "replayed", "rank", "step_seconds": [...],
// "layers": [{"name", "scheme", "wire", "rounds", "bytes_sent",
// "bytes_received", "latency_seconds_mean"}], "bytes_sent", "bytes_received"}.
std::string ReplayJson(int rank, const ReplayResult& result,
                       const std::vector<LayerReport>& layers,
                       const std::vector<PeerTraffic>& traffic);

}  // namespace nereus
