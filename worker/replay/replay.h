#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"

namespace nereus {

// Options of a replay: a worker that sleeps for known times instead of
// computing, and pushes gradients and factors of the real sizes. So it measures
// the network and Nereus, and no arithmetic.
struct ReplayOptions {
  std::vector<LayerSpec> layers;  // Layers of the model.
  std::vector<LayerTime> times;   // Compute times, by layer.
  int64_t steps = 1;              // Number of steps of the job.
  // Time to sleep before each forward: a straggler.
  absl::Duration delay;
  // Time to sleep before a forward if the step's number modulo the workers is
  // this worker's position: each worker is late in turn.
  absl::Duration delay_in_turn;

  // Returns OK, or kInvalidArgument with the field's name and value.
  absl::Status Validate() const;
};

// Result of one worker.
struct ReplayResult {
  // Time from the end of one backward to the end of the next, by step, from the
  // second step on. In a job where the next forward waits for the layers, a
  // step has no other end.
  std::vector<absl::Duration> steps;
};

// Memory of a model, and its part in a job. Used by one thread.
//
//   Replay replay(options);
//   auto client = Client::Connect(client_options, replay.Bindings());
//   auto result = replay.Run(client->get());
class Replay {
 public:
  // `options`: valid.
  explicit Replay(ReplayOptions options);

  // Returns the layers for Connect; their parameters start at 0. This must
  // outlive the client.
  std::vector<LayerBinding> Bindings();

  // Takes part in the job until step `steps` is done, then leaves. Errors: the
  // client's.
  absl::StatusOr<ReplayResult> Run(Client* client);

 private:
  // Parts of a step.
  absl::Status Forward(Client* client, const StepInfo& step);
  absl::Status Backward(Client* client, int64_t step);
  absl::Status Push(Client* client, int layer, int64_t step);
  // Sleeps as long as a device computes that is free after its last work.
  void Compute(absl::Duration time);

  const ReplayOptions options_;
  // Memory of the model, by layer.
  std::vector<std::vector<float>> parameters_;
  std::vector<std::vector<float>> gradients_;
  // Factors, by layer; empty for a layer without factors.
  std::vector<std::vector<float>> output_gradients_;
  std::vector<std::vector<float>> inputs_;
  // Time at which the device is free.
  absl::Time device_free_at_ = absl::InfinitePast();
};

// Returns the result as one line: {"event": "replayed", "rank", "step_seconds":
// [...], "layers": [{"name", "scheme", "wire", "rounds", "bytes_sent",
// "bytes_received", "latency_seconds_mean"}], "bytes_sent", "bytes_received"}.
std::string ReplayJson(int rank, const ReplayResult& result,
                       const std::vector<LayerReport>& layers,
                       const std::vector<PeerTraffic>& traffic);

}  // namespace nereus
