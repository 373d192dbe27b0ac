#include "worker/replay/replay.h"

#include <cstddef>

#include "common/base/status.h"

namespace nereus {
namespace {

constexpr int64_t kReplayStepsMax = int64_t{1} << 30;

absl::Status Forward(const ReplayOptions& options, const StepInfo& step,
                     ReplayDevice* device) {
  NEREUS_TRY(device->Compute(options.delay));
  if (step.step % step.workers == step.position) {
    NEREUS_TRY(device->Compute(options.delay_in_turn));
  }
  for (size_t i = 0; i < options.layers.size(); ++i) {
    NEREUS_TRY(device->WaitForward(static_cast<int>(i)));
    NEREUS_TRY(device->Compute(options.times[i].forward));
  }
  return absl::OkStatus();
}

absl::Status Backward(const ReplayOptions& options, int64_t step,
                      ReplayDevice* device) {
  // The last layer first, as in a real backward pass.
  for (size_t i = options.layers.size(); i > 0; --i) {
    NEREUS_TRY(device->Compute(options.times[i - 1].backward));
    NEREUS_TRY(device->Push(static_cast<int>(i - 1), step));
  }
  return device->MarkBackward();
}

// Does one step, and leaves after the last one.
absl::Status Step(const ReplayOptions& options, const StepInfo& begun,
                  ReplayDevice* device) {
  NEREUS_TRY(Forward(options, begun, device));
  NEREUS_TRY(Backward(options, begun.step, device));
  // In a decoupled job, the next forward pass waits for the layers.
  if (!device->client().traits().decoupled) {
    NEREUS_TRY(device->WaitAll(begun.step));
  }
  return begun.step + 1 == options.steps ? device->Leave(/*early=*/false)
                                         : absl::OkStatus();
}

}  // namespace

absl::Status ReplayOptions::Validate() const {
  NEREUS_TRY(ValidateLayers(layers));
  if (times.size() != layers.size()) {
    return InvalidArgumentError("times has ", times.size(),
                                " layers, the model ", layers.size());
  }
  if (steps < 1 || steps > kReplayStepsMax) {
    return InvalidArgumentError("steps is ", steps, ", must be from 1 to ",
                                kReplayStepsMax);
  }
  for (const absl::Duration each : {delay, delay_in_turn}) {
    if (each >= absl::ZeroDuration() && each <= kComputeTimeMax) continue;
    return InvalidArgumentError("a delay is ", absl::FormatDuration(each),
                                ", must be from 0 to ",
                                absl::FormatDuration(kComputeTimeMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayResult> Replay(const ReplayOptions& options,
                                    ReplayDevice* device) {
  ReplayResult result;
  int64_t step = -1;
  while (step + 1 < options.steps) {
    const StepInfo begun = NEREUS_TRY(device->BeginStep());
    // This worker has joined after the last step, or the job has gone back to a
    // checkpoint of it.
    const bool is_late = begun.step >= options.steps;
    result.left_early =
        !is_late && (begun.should_leave ||
                     (options.should_leave && options.should_leave()));
    if (is_late || result.left_early) {
      const absl::Status left = device->Leave(result.left_early);
      if (absl::IsOutOfRange(left)) continue;
      NEREUS_TRY(left);
      break;
    }
    // The first step, and the first one after the job has gone back, have no
    // step before to measure from.
    const bool measured = step >= 0 && begun.step == step + 1;
    step = begun.step;
    ++result.steps_begun;
    const absl::Status status = Step(options, begun, device);
    if (absl::IsOutOfRange(status)) {  // The job has gone back.
      step = -1;
      continue;
    }
    NEREUS_TRY(status);
    result.last_step = step;
    if (measured) {
      const absl::Duration time = NEREUS_TRY(device->BetweenMarks());
      result.steps.push_back(time);
    }
  }
  return result;
}

}  // namespace nereus
