#include "common/compute/optimizer.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

void ApplySgd(const OptimizerOptions& options, int64_t length,
              float gradient_scale, const float* gradient,
              const float* parameters, float* velocity, float* updated) {
  const float learning_rate = options.learning_rate;
  const float momentum = options.momentum;
  const float weight_decay = options.weight_decay;
  for (int64_t i = 0; i < length; ++i) {
    const float g = gradient_scale * gradient[i] + weight_decay * parameters[i];
    velocity[i] = momentum * velocity[i] + g;
    updated[i] = parameters[i] - learning_rate * velocity[i];
  }
}

// base^exponent by repeated squaring: unlike std::pow, the same bits on every
// machine.
double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

void ApplyAdam(const OptimizerOptions& options, int64_t step, int64_t length,
               float gradient_scale, const float* gradient,
               const float* parameters, float* state, float* updated) {
  float* first = state;
  float* second = state + length;
  // Algorithm 1's corrections, folded into two factors as its section 2
  // suggests.
  const float step_size = static_cast<float>(
      options.learning_rate / (1.0 - Power(options.beta1, step + 1)));
  const float second_scale =
      static_cast<float>(1.0 / (1.0 - Power(options.beta2, step + 1)));
  for (int64_t i = 0; i < length; ++i) {
    const float g =
        gradient_scale * gradient[i] + options.weight_decay * parameters[i];
    first[i] = options.beta1 * first[i] + (1.0f - options.beta1) * g;
    second[i] = options.beta2 * second[i] + (1.0f - options.beta2) * g * g;
    updated[i] = parameters[i] -
                 step_size * first[i] /
                     (std::sqrt(second[i] * second_scale) + options.epsilon);
  }
}

absl::Status CheckRange(absl::string_view name, float value, float low,
                        float high) {
  if (value >= low && value < high) return absl::OkStatus();  // False for NaN.
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, ", must be in [", low, ", ", high, ")"));
}

}  // namespace

absl::string_view UpdateRuleName(UpdateRule rule) {
  return rule == UpdateRule::kSgd ? "sgd" : "adam";
}

absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name) {
  if (name == "sgd") return UpdateRule::kSgd;
  if (name == "adam") return UpdateRule::kAdam;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown update rule \"", name, "\", must be sgd or adam"));
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

void ApplyOptimizer(const OptimizerOptions& options, int64_t step,
                    int64_t length, float gradient_scale, const float* gradient,
                    const float* parameters, float* state, float* updated) {
  switch (options.rule) {
    case UpdateRule::kSgd:
      ApplySgd(options, length, gradient_scale, gradient, parameters, state,
               updated);
      return;
    case UpdateRule::kAdam:
      ApplyAdam(options, step, length, gradient_scale, gradient, parameters,
                state, updated);
      return;
  }
}

}  // namespace nereus
