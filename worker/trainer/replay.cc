#include "worker/trainer/replay.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/random.h"
#include "common/base/status.h"
#include "worker/public/client.h"
#include "worker/trainer/gpu_device.h"

namespace nereus {
namespace {

constexpr int64_t kReplayStepsMax = int64_t{1} << 30;

// Mean value of all gradients. How gradients travel depends on their values
// only in a sparse job (see Vary).
constexpr float kValue = 1e-3f;

// Gives the blocks of a gradient different norms. In a sparse job only the
// blocks with the largest norms travel; blocks with equal norms would take
// turns.
void Vary(Random& random, std::vector<float>& gradient) {
  constexpr size_t kStretch = 1024;
  for (size_t i = 0; i < gradient.size(); i += kStretch) {
    const float factor = 0.5f + static_cast<float>(random.Uniform());
    const size_t end = std::min(gradient.size(), i + kStretch);
    for (size_t j = i; j < end; ++j) gradient[j] *= factor;
  }
}

// Memory of one layer on the device.
struct ReplayLayer {
  FloatArray parameters;  // Zeros at first.
  FloatArray gradient;
  // Factors; empty for a layer without factors.
  FloatArray output_gradient;
  FloatArray input;
};

absl::StatusOr<FloatArray> Upload(const std::vector<float>& values,
                                  Device* device) {
  FloatArray array = NEREUS_TRY(device->Allocate(std::ssize(values)));
  device->Write(values, array.data());
  return array;
}

// The gradient consists of stretches of equal values, each with another random
// value. So in a sparse job blocks have different norms.
absl::StatusOr<ReplayLayer> MakeLayer(const LayerSpec& spec, int layer,
                                      Device* device) {
  ReplayLayer made;
  made.parameters = NEREUS_TRY(device->Allocate(spec.parameters));
  std::vector<float> gradient(spec.parameters, kValue);
  Random random(/*seed=*/static_cast<uint64_t>(layer) + 1);
  Vary(random, gradient);
  made.gradient = NEREUS_TRY(Upload(gradient, device));
  if (!spec.has_factors) return made;
  made.output_gradient = NEREUS_TRY(
      Upload(std::vector<float>(spec.rows * spec.m, kValue), device));
  made.input = NEREUS_TRY(
      Upload(std::vector<float>(spec.rows * spec.n, kValue), device));
  return made;
}

// A worker that replays: its client and its memory.
class Replayer {
 public:
  Replayer(const ReplayOptions& options, Device* device)
      : options_(options), device_(*device) {}

  absl::Status Join(const ClientOptions& client_options);
  // Does all steps, and leaves.
  absl::StatusOr<ReplayResult> Run();
  // REQUIRES: Run has returned OK.
  absl::StatusOr<ReplayReport> Report(ReplayResult result) const;

 private:
  // Does one step, and leaves after the last one.
  absl::Status Step(const StepInfo& begun);
  absl::Status Forward(const StepInfo& begun);
  absl::Status Backward(int64_t step);
  absl::Status Leave(bool early);

  const ReplayOptions& options_;
  Device& device_;
  std::vector<ReplayLayer> layers_;
  // Reports before the first step, and after the last one.
  ClientReport before_;
  ClientReport after_;
  // Last member, so destroyed first: the client uses the memory above.
  std::unique_ptr<Client> client_;
};

absl::Status Replayer::Join(const ClientOptions& client_options) {
  std::vector<LayerBinding> bindings;
  for (const LayerSpec& spec : options_.layers) {
    layers_.emplace_back() =
        NEREUS_TRY(MakeLayer(spec, static_cast<int>(layers_.size()), &device_));
    bindings.push_back({spec, layers_.back().parameters.span()});
  }
  client_ = NEREUS_TRY(ConnectOn(device_, client_options, std::move(bindings),
                                 /*keep_timeline=*/true));
  before_ = client_->Report();
  return device_.status();
}

absl::Status Replayer::Forward(const StepInfo& begun) {
  device_.Spend(options_.delay);
  if (begun.step % begun.workers == begun.position) {
    device_.Spend(options_.delay_in_turn);
  }
  for (size_t i = 0; i < options_.layers.size(); ++i) {
    NEREUS_TRY(client_->WaitForward(static_cast<int>(i), device_.stream()));
    device_.Spend(options_.times[i].forward);
  }
  return absl::OkStatus();
}

absl::Status Replayer::Backward(int64_t step) {
  // The last layer first, as in a real backward pass.
  for (int layer = static_cast<int>(layers_.size()) - 1; layer >= 0; --layer) {
    device_.Spend(options_.times[layer].backward);
    const ReplayLayer& memory = layers_[layer];
    if (options_.layers[layer].has_factors) {
      NEREUS_TRY(client_->PushFactors(
          layer, step, {memory.output_gradient.span(), memory.input.span()},
          memory.gradient.span(), device_.stream()));
    } else {
      NEREUS_TRY(
          client_->Push(layer, step, memory.gradient.span(), device_.stream()));
    }
  }
  device_.Mark();
  return device_.status();
}

absl::Status Replayer::Step(const StepInfo& begun) {
  NEREUS_TRY(Forward(begun));
  NEREUS_TRY(Backward(begun.step));
  if (options_.waits_at_end) {
    NEREUS_TRY(client_->WaitAll(begun.step, device_.stream()));
  }
  return begun.step + 1 == options_.steps ? Leave(/*early=*/false)
                                          : absl::OkStatus();
}

absl::Status Replayer::Leave(bool early) {
  // Waits for the last results, so that their copies count.
  for (size_t i = 0; i < layers_.size(); ++i) {
    NEREUS_TRY(client_->WaitForward(static_cast<int>(i), device_.stream()));
  }
  // Leave makes the client copy parameters to the host once more where a GPU
  // has updated them. The client needs them for checksums, and one worker also
  // for the job's last checkpoint. These copies belong to no step, so they do
  // not count.
  after_ = client_->Report();
  return early ? client_->LeaveEarly(device_.stream())
               : client_->Leave(device_.stream());
}

absl::StatusOr<ReplayResult> Replayer::Run() {
  ReplayResult result;
  int64_t step = -1;
  while (step + 1 < options_.steps) {
    const StepInfo begun = NEREUS_TRY(client_->BeginStep(device_.stream()));
    // This worker has joined after the last step, or the job has gone back to a
    // checkpoint of it.
    const bool is_late = begun.step >= options_.steps;
    result.left_early =
        !is_late && (begun.should_leave ||
                     (options_.should_leave && options_.should_leave()));
    if (is_late || result.left_early) {
      const absl::Status left = Leave(result.left_early);
      if (absl::IsOutOfRange(left)) continue;
      NEREUS_TRY(left);
      break;
    }
    // The first step, and the first one after the job has gone back, have no
    // step before to measure from.
    const bool measured = step >= 0 && begun.step == step + 1;
    step = begun.step;
    ++result.steps_begun;
    const absl::Status status = Step(begun);
    if (absl::IsOutOfRange(status)) {  // The job has gone back.
      step = -1;
      continue;
    }
    NEREUS_TRY(status);
    result.last_step = step;
    if (measured) {
      result.steps.push_back(device_.BetweenMarks());
    }
  }
  NEREUS_TRY(device_.status());
  return result;
}

absl::StatusOr<ReplayReport> Replayer::Report(ReplayResult result) const {
  ReplayReport report;
  report.rank = client_->traits().rank;
  report.device = device_.name();
  report.computing = TotalTime(options_.times);
  report.result = std::move(result);
  report.costs = client_->Report();
  report.bytes_copied_out = after_.bytes_copied_out - before_.bytes_copied_out;
  report.bytes_copied_in = after_.bytes_copied_in - before_.bytes_copied_in;
  if (device_.gpu() >= 0) report.timeline = NEREUS_TRY(client_->Timeline());
  return report;
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

absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options,
                                    const ClientOptions& client_options,
                                    Device* device) {
  Replayer replayer(options, device);
  NEREUS_TRY(replayer.Join(client_options));
  ReplayResult result = NEREUS_TRY(replayer.Run());
  return replayer.Report(std::move(result));
}

}  // namespace nereus
