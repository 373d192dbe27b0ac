#include "common/compute/optimizer.h"

#include <algorithm>
#include <cmath>

#include "common/base/names.h"
#include "common/base/status.h"
#include "common/compute/vectors.h"

namespace nereus {
namespace {

// Returns base^exponent by repeated squaring. Unlike std::pow, this gives the
// same bits on every machine, so all replicas take the same step.
double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

// Returns OK if low <= value < high.
absl::Status CheckRange(absl::string_view name, float value, float low,
                        float high) {
  // Both comparisons are false for NaN.
  if (value >= low && value < high) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", value, ", must be in [", low, ", ",
                              high, ")");
}

constexpr Named<UpdateRule> kRuleNames[] = {{UpdateRule::kSgd, "sgd"},
                                            {UpdateRule::kAdam, "adam"}};

constexpr Named<OptimizerPlace> kPlaceNames[] = {
    {OptimizerPlace::kServer, "server"}, {OptimizerPlace::kWorker, "worker"}};

}  // namespace

absl::string_view UpdateRuleName(UpdateRule rule) {
  return NameOf<kRuleNames>(rule);
}

absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name) {
  return ParseName<kRuleNames>("update rule", name);
}

absl::string_view OptimizerPlaceName(OptimizerPlace place) {
  return NameOf<kPlaceNames>(place);
}

absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name) {
  return ParseName<kPlaceNames>("place for the optimizer", name);
}

absl::Status OptimizerOptions::Validate() const {
  absl::Status status =
      CheckRange("learning_rate", learning_rate, 0.0f, INFINITY);
  status.Update(CheckRange("momentum", momentum, 0.0f, 1.0f));
  status.Update(CheckRange("weight_decay", weight_decay, 0.0f, INFINITY));
  status.Update(CheckRange("beta1", beta1, 0.0f, 1.0f));
  status.Update(CheckRange("beta2", beta2, 0.0f, 1.0f));
  status.Update(CheckRange("epsilon", epsilon, 1e-30f, INFINITY));
  return status;
}

int OptimizerStateCount(UpdateRule rule) {
  return rule == UpdateRule::kSgd ? 1 : 2;
}

absl::string_view OptimizerStateName(UpdateRule rule, int index) {
  if (rule == UpdateRule::kSgd) return "velocity";
  return index == 0 ? "first_moment" : "second_moment";
}

SgdStep SgdStepOf(const OptimizerOptions& options, float gradient_scale) {
  return {gradient_scale, options.weight_decay, options.momentum,
          options.learning_rate};
}

// Computes the corrections 1 - beta^t in double: in float32 they would lose
// most of their bits if t is small and beta is near 1.
AdamStep AdamStepOf(const OptimizerOptions& options, int64_t step,
                    float gradient_scale) {
  return {gradient_scale,
          options.weight_decay,
          options.beta1,
          options.beta2,
          static_cast<float>(options.learning_rate /
                             (1.0 - Power(options.beta1, step + 1))),
          static_cast<float>(1.0 / (1.0 - Power(options.beta2, step + 1))),
          options.epsilon};
}

int64_t ApplyOptimizer(const OptimizerOptions& options, int64_t step,
                       int64_t length, float gradient_scale,
                       const float* gradient, const float* parameters,
                       float* state, float* updated) {
  const bool is_adam = options.rule == UpdateRule::kAdam;
  const bool is_finite =
      is_adam ? ApplyAdam(AdamStepOf(options, step, gradient_scale), length,
                          gradient, parameters, state, state + length, updated)
              : ApplySgd(SgdStepOf(options, gradient_scale), length, gradient,
                         parameters, state, updated);
  if (is_finite) return -1;
  const auto count = static_cast<size_t>(length);
  const int64_t parameter = FindNotFinite(updated, count);
  const int64_t moment = is_adam ? FindNotFinite(state + length, count) : -1;
  // The smaller index; -1 is the largest unsigned number.
  return static_cast<int64_t>(std::min(static_cast<uint64_t>(parameter),
                                       static_cast<uint64_t>(moment)));
}

}  // namespace nereus
