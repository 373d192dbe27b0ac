#include "worker/trainer/standalone_client.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/compute/factor_gradient.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<Client>> StandaloneClient::Create(
    const OptimizerOptions& optimizer, std::vector<LayerBinding> layers,
    const RateSchedule& schedule) {
  NEREUS_TRY(optimizer.Validate());
  std::vector<LayerSpec> specs;
  for (const LayerBinding& layer : layers) specs.push_back(layer.spec);
  NEREUS_TRY(ValidateLayers(specs));
  return std::unique_ptr<Client>(
      new StandaloneClient(optimizer, schedule, std::move(layers)));
}

StandaloneClient::StandaloneClient(const OptimizerOptions& optimizer,
                                   const RateSchedule& schedule,
                                   std::vector<LayerBinding> layers)
    : traits_{.optimizer = optimizer, .rate_schedule = schedule} {
  for (LayerBinding& layer : layers) {
    std::vector<float> state(OptimizerStateCount(optimizer.rule) *
                             layer.spec.parameters);
    layers_.push_back({std::move(layer), std::move(state)});
  }
}

absl::StatusOr<StepInfo> StandaloneClient::BeginStep(absl::Duration /*timeout*/,
                                                     Stream /*stream*/) {
  // A single worker makes one contribution in each step.
  const int64_t step = next_step_++;
  StepInfo info;
  info.step = step;
  info.contributions_before = step;
  return info;
}

absl::Status StandaloneClient::Push(int layer, int64_t step,
                                    absl::Span<float> gradient,
                                    Stream /*stream*/) {
  LayerState& state = layers_[layer];
  const LayerSpec& spec = state.binding.spec;
  NEREUS_CHECK(step == state.rounds)
      << spec.name << " is pushed for step " << step << " after "
      << state.rounds << " steps";
  // The optimizer reads and writes the parameters in place. That is safe:
  // backward does not read this layer's parameters again.
  float* const parameters = state.binding.parameters.data();
  ApplyOptimizer(OptimizerAt(traits_.optimizer, traits_.rate_schedule, step),
                 step, spec.parameters,
                 /*gradient_scale=*/1.0f, gradient.data(), parameters,
                 state.optimizer_state.data(), parameters);
  ++state.rounds;
  return absl::OkStatus();
}

absl::Status StandaloneClient::PushFactors(int layer, int64_t step,
                                           const Factors& factors,
                                           absl::Span<float> /*gradient*/,
                                           Stream stream) {
  const LayerSpec& spec = layers_[layer].binding.spec;
  product_.resize(std::max<size_t>(product_.size(), spec.parameters));
  const int64_t rows = std::ssize(factors.output_gradient) / spec.m;
  FactorGradient(rows, spec.m, spec.n,
                 /*bias=*/spec.parameters > spec.m * spec.n, /*scale=*/1.0f,
                 factors.output_gradient.data(), factors.input.data(),
                 product_.data());
  return Push(layer, step, absl::MakeSpan(product_), stream);
}

absl::StatusOr<absl::Span<const float>> StandaloneClient::Mean(
    int /*layer*/) const {
  return FailedPreconditionError(
      "a standalone worker updates the parameters in Push");
}

absl::Status StandaloneClient::Checkpoint() {
  return FailedPreconditionError(
      "a standalone worker has no servers to write a checkpoint");
}

ClientReport StandaloneClient::Report() const {
  ClientReport report;
  for (const LayerState& state : layers_) {
    LayerReport layer;
    layer.name = state.binding.spec.name;
    layer.scheme = "none";
    layer.reason = "a standalone worker synchronises with no other";
    layer.rounds = state.rounds;
    report.layers.push_back(std::move(layer));
  }
  return report;
}

absl::Status StandaloneClient::Abort(absl::string_view reason) {
  return FailedPreconditionError(reason);
}

}  // namespace nereus
