#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client.h"
#include "worker/public/gpu_client.h"

namespace nereus {

// Values of one layer in a replay.
struct ReplayLayer {
  std::vector<float> parameters;  // Zeros at first.
  std::vector<float> gradient;
  // Factors; empty for a layer without factors.
  std::vector<float> output_gradient;
  std::vector<float> input;
};

// Makes values for the layer with index `layer`, which `spec` describes. The
// gradient consists of runs of 1024 equal values, each run with another random
// value. So in a sparse job blocks have different norms.
ReplayLayer MakeReplayLayer(const LayerSpec& spec, int layer);

// Use of a GPU by one replay.
struct GpuUse {
  GpuClient::Staged staged;       // Bytes copied in all steps together.
  std::vector<GpuSpan> timeline;  // See GpuClient::Timeline.
};

// Device of a replay, a CPU or a GPU. It has the memory of the model's layers,
// and a client for this memory. Instead of computing, it is busy for a given
// time. For methods with the name of a method of Client, the order of calls and
// the errors are those of Client. Not thread-safe.
class ReplayDevice {
 public:
  virtual ~ReplayDevice() = default;

  // Returns the device's client, for JobTraits and Client::Report.
  virtual const Client& client() const = 0;

  virtual absl::StatusOr<StepInfo> BeginStep() = 0;
  // Pushes the factors of a layer that has factors, and the gradient of others.
  virtual absl::Status Push(int layer, int64_t step) = 0;
  virtual absl::Status WaitForward(int layer) = 0;
  virtual absl::Status WaitAll(int64_t step) = 0;
  // `early`: as Client::LeaveEarly.
  virtual absl::Status Leave(bool early) = 0;

  // Keeps the device busy for `time`, after all its work so far.
  virtual absl::Status Compute(absl::Duration time) = 0;

  // Notes the time at which the device has done all its work so far: the end of
  // a backward pass.
  virtual absl::Status MarkBackward() = 0;
  // Returns the time between the last two times that MarkBackward has noted.
  // REQUIRES: two calls of MarkBackward.
  virtual absl::StatusOr<absl::Duration> BetweenMarks() = 0;

  // Returns the use of the GPU; nothing on a CPU. Waits for the GPU. REQUIRES:
  // Leave has returned OK.
  virtual absl::StatusOr<std::optional<GpuUse>> gpu_use() const = 0;
};

}  // namespace nereus
