#include "worker/client/layer_bindings.h"

#include "common/base/status.h"

namespace nereus {

absl::Status CheckLength(const LayerSpec& layer, absl::string_view what,
                         size_t found, int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return absl::OkStatus();
  return InvalidArgumentError(what, " has ", found, " floats, layer ",
                              layer.name, " has ", expected);
}

absl::Status CheckTakesFactors(const LayerSpec& layer) {
  if (layer.may_send_factors()) return absl::OkStatus();
  return InvalidArgumentError(
      "layer ", DescribeLayer(layer), ", ",
      !layer.has_factors ? "has no factors: its LayerSpec::has_factors is false"
      : layer.rows == kRowsNotKnown
          ? "takes no factors before the job knows their rows: push its "
            "gradient, and report its rows (SetFactorRows)"
          : "takes no factors any more, because a worker has said that its "
            "gradient is no product of factors: push its gradient");
}

absl::Status CheckFactors(const LayerSpec& layer, const Factors& factors,
                          absl::Span<const float> gradient,
                          bool needs_gradient) {
  NEREUS_TRY(CheckTakesFactors(layer));
  const auto check = [&](absl::string_view what, size_t found, int64_t width) {
    return Prefixed(CheckLength(layer, what, found, layer.rows * width),
                    "factors of ", layer.rows,
                    " rows are taken (factor_rows, after BeginStep): ");
  };
  NEREUS_TRY(
      check("the output gradient", factors.output_gradient.size(), layer.m));
  NEREUS_TRY(check("the input", factors.input.size(), layer.n));
  // `gradient` is the memory for the mean gradient.
  if (!needs_gradient && gradient.empty()) return absl::OkStatus();
  return CheckLength(layer, "the gradient", gradient.size(), layer.parameters);
}

absl::Status CheckFitsFrames(const LayerSpec& layer) {
  constexpr int64_t kValuesMax = int64_t{1} << 32;
  if (layer.parameters <= kValuesMax) return absl::OkStatus();
  return InvalidArgumentError(
      "layer ", layer.name, " has ", layer.parameters,
      " values, more than the ", kValuesMax,
      " of a gradient that is sent in place of factors: push at most "
      "LayerSpec::rows rows of factors");
}

// Servers that run the optimizer would ignore the caller's state.
absl::Status CheckState(const std::vector<LayerBinding>& layers,
                        std::optional<OptimizerPlace> optimizer) {
  if (optimizer != OptimizerPlace::kServer) return absl::OkStatus();
  for (const LayerBinding& layer : layers) {
    if (layer.state.empty()) continue;
    return InvalidArgumentError(
        "layer ", layer.spec.name, " has ", layer.state.size(),
        " floats of optimizer state, which the job would ignore: its servers "
        "run the optimizer. Set ClientOptions::optimizer to kWorker, or leave "
        "LayerBinding::state empty");
  }
  return absl::OkStatus();
}

absl::Status CheckNoneIsLost(absl::Span<const LayerSpec> layers) {
  for (const LayerSpec& layer : layers) {
    if (layer.rows != kFactorsLost) continue;
    return InvalidArgumentError("layer ", layer.name, " has rows ",
                                kFactorsLost, ", must be 0 or more");
  }
  return absl::OkStatus();
}

// All layers must have as many state arrays as the first layer, because the job
// has one optimizer.
absl::StatusOr<std::vector<LayerSpec>> CheckedSpecsIn(
    const std::vector<LayerBinding>& layers) {
  for (const LayerBinding& layer : layers) {
    NEREUS_TRY(CheckLength(layer.spec, "the parameter memory",
                           layer.parameters.size(), layer.spec.parameters));
    if (layer.spec.parameters > 0 &&
        layer.state.size() % static_cast<size_t>(layer.spec.parameters) != 0) {
      return InvalidArgumentError("the state of layer ", layer.spec.name,
                                  " has ", layer.state.size(),
                                  " floats, not a multiple of its ",
                                  layer.spec.parameters, " parameters");
    }
    const LayerBinding& first = layers.front();
    if (layer.state.size() * first.parameters.size() !=
        first.state.size() * layer.parameters.size()) {
      return InvalidArgumentError(
          "the state of layer ", layer.spec.name, " has ", layer.state.size(),
          " floats for ", layer.parameters.size(),
          " parameters, that of layer ", first.spec.name, " ",
          first.state.size(), " for ", first.parameters.size(),
          ": all must have as many arrays");
    }
  }
  std::vector<LayerSpec> specs;
  for (const LayerBinding& layer : layers) specs.push_back(layer.spec);
  NEREUS_TRY(ValidateLayers(specs));
  NEREUS_TRY(CheckNoneIsLost(specs));
  return specs;
}

std::vector<std::string> NamesOf(const std::vector<LayerSpec>& specs) {
  std::vector<std::string> names;
  for (const LayerSpec& spec : specs) names.push_back(spec.name);
  return names;
}

}  // namespace nereus
