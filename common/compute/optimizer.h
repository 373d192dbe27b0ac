#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/update_rules.h"

namespace nereus {

// Rule by which a mean gradient changes parameters
// (common/compute/update_rules.h).
enum class UpdateRule {
  kSgd,   // "sgd", with momentum.
  kAdam,  // "adam".
};

// Returns the name of the rule, as --update takes it.
absl::string_view UpdateRuleName(UpdateRule rule);
// Returns the rule of that name. Errors: kInvalidArgument, with the name.
absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name);

// Side that runs the optimizer.
enum class OptimizerPlace {
  // "server": Nereus runs the optimizer. The servers run it; for layers by
  // factors or around a ring, the workers run it.
  kServer,
  // "worker": Nereus only averages gradients; the caller runs its own
  // optimizer.
  kWorker,
};

// Returns the name of the place, as --optimizer takes it.
absl::string_view OptimizerPlaceName(OptimizerPlace place);
// Returns the place of that name. Errors: kInvalidArgument, with the name.
absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name);

// Rule and constants of the optimizer, equal on all members of a job: a member
// with other constants would compute other parameters. A value type.
struct OptimizerOptions {
  UpdateRule rule = UpdateRule::kSgd;
  float learning_rate = 0.01f;  // Step size, >= 0.
  float momentum = 0.9f;  // sgd: share of the velocity that stays, in [0, 1).
  // The update adds this number times the parameter to the gradient; >= 0.
  float weight_decay = 0.0f;
  float beta1 = 0.9f;     // adam: decay of the first moment, in [0, 1).
  float beta2 = 0.999f;   // adam: decay of the second moment, in [0, 1).
  float epsilon = 1e-8f;  // adam: added to the divisor, >= 1e-30.

  bool operator==(const OptimizerOptions&) const = default;

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Constants with which the reference networks learn well (docs/benchmarks.md,
// "Accuracy", has figures for the cnn).
inline constexpr OptimizerOptions kReferenceOptimizer = {
    .learning_rate = 0.02f, .weight_decay = 0.0005f};

// Returns the number of arrays of optimizer state: 1 for sgd (the velocity), 2
// for adam (the first and the second moments).
int OptimizerStateCount(UpdateRule rule);

// Returns the name of state array `index` in a checkpoint: "velocity" for sgd,
// "first_moment" or "second_moment" for adam. REQUIRES: 0 <= index <
// OptimizerStateCount(rule).
absl::string_view OptimizerStateName(UpdateRule rule, int index);

// Largest OptimizerStateCount of all rules.
inline constexpr int kOptimizerStatesMax = 2;

// Returns the constants of one update. `step`: number of updates done before
// this one, >= 0. `gradient_scale`: see ApplyOptimizer.
SgdStep SgdStepOf(const OptimizerOptions& options, float gradient_scale);
AdamStep AdamStepOf(const OptimizerOptions& options, int64_t step,
                    float gradient_scale);

// Applies one update to `length` parameters (common/compute/update_rules.h).
// All arrays are float32 in host memory. gradient_scale times `gradient` is the
// mean gradient.
//
//   step        number of updates done before this one, >= 0; used by adam.
//   state       {OptimizerStateCount * length}, zero before the first step:
//               the velocity, or the first and then the second moments.
//   updated     receives the new parameters. It may be `parameters` itself; no
//               other arrays overlap.
//
// Returns the index of the first parameter whose new value or state is NaN or
// infinite; -1 if there is none.
int64_t ApplyOptimizer(const OptimizerOptions& options, int64_t step,
                       int64_t length, float gradient_scale,
                       const float* gradient, const float* parameters,
                       float* state, float* updated);

}  // namespace nereus
