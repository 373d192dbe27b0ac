#include "worker/trainer/standalone_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/compute/factor_gradient.h"

namespace nereus {
namespace {

absl::Status CheckLength(absl::string_view what, int64_t have,
                         const LayerSpec& layer, int64_t want) {
  if (have == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " has ", have, " floats, layer ", layer.name, " has ", want));
}

absl::Status CheckFactors(const Factors& factors, const LayerSpec& layer) {
  if (!layer.has_factors) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer.name, " is of kind ",
                     std::string(LayerKindName(layer.kind)),
                     ", only a fully connected one has factors"));
  }
  NEREUS_RETURN_IF_ERROR(CheckLength("output gradient",
                                     factors.output_gradient.size(), layer,
                                     layer.rows * layer.m));
  return CheckLength("input", factors.input.size(), layer,
                     layer.rows * layer.n);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> StandaloneClient::Create(
    const OptimizerOptions& optimizer, std::vector<LayerBinding> layers) {
  NEREUS_RETURN_IF_ERROR(optimizer.Validate());
  std::vector<LayerSpec> specs;
  for (const LayerBinding& layer : layers) specs.push_back(layer.spec);
  NEREUS_RETURN_IF_ERROR(ValidateLayers(specs));
  for (const LayerBinding& layer : layers) {
    NEREUS_RETURN_IF_ERROR(CheckLength("memory for the parameters",
                                       layer.parameters.size(), layer.spec,
                                       layer.spec.parameters));
  }
  return std::unique_ptr<Client>(
      new StandaloneClient(optimizer, std::move(layers)));
}

StandaloneClient::StandaloneClient(const OptimizerOptions& optimizer,
                                   std::vector<LayerBinding> layers)
    : traits_{.optimizer = optimizer} {
  MutexLock lock(&mu_);
  for (LayerBinding& layer : layers) {
    LayerState state;
    state.optimizer_state.resize(OptimizerStateCount(optimizer.rule) *
                                 layer.spec.parameters);
    state.binding = std::move(layer);
    layers_.push_back(std::move(state));
  }
}

absl::StatusOr<StandaloneClient::LayerState*> StandaloneClient::StartPush(
    int layer, int64_t step) {
  if (left_) return absl::FailedPreconditionError("push after Leave");
  if (layer < 0 || layer >= static_cast<int>(layers_.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push of layer ", layer, ", the model has ", layers_.size()));
  }
  LayerState& state = layers_[layer];
  if (step != state.pushed || step != state.waited) {
    return absl::InvalidArgumentError(absl::StrCat(
        "push of layer ", state.binding.spec.name, " for step ", step,
        ", next is step ", state.pushed,
        state.pushed == state.waited ? "" : " after the Wait for the last"));
  }
  return &state;
}

void StandaloneClient::FinishPush(const float* gradient, LayerState* state) {
  float* parameters = state->binding.parameters.data();
  ApplyOptimizer(traits_.optimizer, state->pushed,
                 state->binding.spec.parameters, 1.0f, gradient, parameters,
                 state->optimizer_state.data(), parameters);
  ++state->pushed;
}

absl::StatusOr<StepInfo> StandaloneClient::BeginStep() {
  MutexLock lock(&mu_);
  if (left_) return absl::FailedPreconditionError("BeginStep after Leave");
  const int64_t step = next_step_++;
  return StepInfo{step, /*position=*/0, /*workers=*/1, step};
}

absl::Status StandaloneClient::Push(int layer, int64_t step,
                                    absl::Span<float> gradient) {
  MutexLock lock(&mu_);
  NEREUS_ASSIGN_OR_RETURN(LayerState * state, StartPush(layer, step));
  const LayerSpec& spec = state->binding.spec;
  NEREUS_RETURN_IF_ERROR(
      CheckLength("gradient", gradient.size(), spec, spec.parameters));
  FinishPush(gradient.data(), state);
  return absl::OkStatus();
}

absl::Status StandaloneClient::PushFactors(int layer, int64_t step,
                                           const Factors& factors,
                                           absl::Span<float> /*gradient*/) {
  MutexLock lock(&mu_);
  NEREUS_ASSIGN_OR_RETURN(LayerState * state, StartPush(layer, step));
  const LayerSpec& spec = state->binding.spec;
  NEREUS_RETURN_IF_ERROR(CheckFactors(factors, spec));
  const int64_t floats = spec.parameters;
  if (floats > static_cast<int64_t>(gradient_.size())) gradient_.resize(floats);
  FactorGradient(spec.rows, spec.m, spec.n, floats > spec.m * spec.n, 1.0f,
                 factors.output_gradient.data(), factors.input.data(),
                 gradient_.data());
  FinishPush(gradient_.data(), state);
  return absl::OkStatus();
}

absl::Status StandaloneClient::Wait(int layer, int64_t step) {
  MutexLock lock(&mu_);
  return WaitLocked(layer, step);
}

absl::Status StandaloneClient::WaitForward(int layer) {
  MutexLock lock(&mu_);
  if (layer < 0 || layer >= static_cast<int>(layers_.size())) {
    return WaitLocked(layer, 0);
  }
  const int64_t pushed = layers_[layer].pushed;
  return pushed == 0 ? absl::OkStatus() : WaitLocked(layer, pushed - 1);
}

absl::Status StandaloneClient::WaitAll(int64_t step) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    NEREUS_RETURN_IF_ERROR(WaitLocked(static_cast<int>(i), step));
  }
  return absl::OkStatus();
}

absl::Status StandaloneClient::WaitLocked(int layer, int64_t step) {
  if (left_) return absl::FailedPreconditionError("wait after Leave");
  if (layer < 0 || layer >= static_cast<int>(layers_.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wait for layer ", layer, ", the model has ", layers_.size()));
  }
  LayerState& state = layers_[layer];
  if (step < 0 || step >= state.pushed) {
    return absl::InvalidArgumentError(
        absl::StrCat("wait for layer ", state.binding.spec.name, " and step ",
                     step, ", pushed are the steps before ", state.pushed));
  }
  state.waited = std::max(state.waited, step + 1);
  return absl::OkStatus();
}

absl::Status StandaloneClient::Checkpoint() {
  return absl::FailedPreconditionError(
      "a worker alone has no servers that would write a checkpoint");
}

ClientReport StandaloneClient::Report() const {
  MutexLock lock(&mu_);
  ClientReport report;
  for (const LayerState& state : layers_) {
    LayerReport layer;
    layer.name = state.binding.spec.name;
    layer.scheme = "none";
    layer.reason = "one worker alone has no other to synchronise with";
    layer.rounds = state.waited;
    report.layers.push_back(std::move(layer));
  }
  return report;
}

absl::Status StandaloneClient::Abort(absl::string_view reason) {
  return absl::FailedPreconditionError(reason);
}

absl::Status StandaloneClient::Leave() {
  MutexLock lock(&mu_);
  if (left_) return absl::FailedPreconditionError("Leave was called before");
  left_ = true;
  return absl::OkStatus();
}

}  // namespace nereus
