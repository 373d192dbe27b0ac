#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "worker/public/client_options.h"
#include "worker/public/client_report.h"
#include "worker/trainer/device.h"

namespace nereus {

// Options of a replay: the worker keeps its device busy for known times instead
// of computing, and pushes gradients and factors of the real sizes. So a replay
// measures the network and Nereus, and no arithmetic.
struct ReplayOptions {
  std::vector<LayerSpec> layers;  // Layers of the model.
  std::vector<LayerTime> times;   // Compute times, by layer.
  int64_t steps = 1;              // Number of steps of the job.
  // True if a step waits for all its layers at its end; false if the next
  // forward waits for each layer before it computes for it.
  bool waits_at_end = false;
  // Time to compute before each forward pass: makes this worker a straggler.
  absl::Duration delay;
  // Time to compute before the forward pass of a step if the step's number,
  // modulo the number of workers, is this worker's position: each worker is
  // late in turn.
  absl::Duration delay_in_turn;
  // True once the worker should leave the job early, before the next step.
  // Called before each step, besides StepInfo::should_leave. Empty: never.
  std::function<bool()> should_leave;

  // Returns OK, or kInvalidArgument with the field's name and value.
  absl::Status Validate() const;
};

// Result of one worker.
struct ReplayResult {
  // Time from the end of one backward pass to the end of the next, by step. The
  // first step has no such time, nor has the first step after the job has gone
  // back to a checkpoint. (Backward passes are the marks because the rounds of
  // a step end during the next forward pass.)
  std::vector<absl::Duration> steps;
  // Number of steps that this worker has begun. A step that the job has
  // repeated counts each time.
  int64_t steps_begun = 0;
  // True if the worker left the job before its last step; and the last step
  // that it has done, -1 for none.
  bool left_early = false;
  int64_t last_step = -1;
};

// Report of one worker's replay.
struct ReplayReport {
  int rank = 0;              // Rank of the worker.
  std::string device;        // Device::name.
  absl::Duration computing;  // Time that the device computes in a step.
  ReplayResult result;
  ClientReport costs;  // Report of the client, after the last step.
  // On a GPU: its spans, and the bytes that were copied to the host and to the
  // GPU in all steps together.
  std::optional<std::vector<GpuSpan>> timeline;
  int64_t bytes_copied_out = 0;
  int64_t bytes_copied_in = 0;
};

// Joins the job with layers in the memory of `device`, takes part until
// `options.steps` steps of the job are done, or until it should leave, and
// leaves. `options`: valid. Errors: those of the client and the device.
absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options,
                                    const ClientOptions& client_options,
                                    Device* device);

}  // namespace nereus
