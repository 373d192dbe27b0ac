#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/update_rules.h"

namespace nereus {

// Rule by which a mean gradient changes parameters
// (common/compute/update_rules.h).
enum class UpdateRule {
  kSgd,       // "sgd", with momentum.
  kNesterov,  // "nesterov": sgd with Nesterov's momentum.
  kAdam,      // "adam".
  kAdamW,     // "adamw": adam whose weight decay is not part of the gradient.
};

// Returns the name of the rule, as --update takes it.
absl::string_view UpdateRuleName(UpdateRule rule);
// Returns the rule of that name. Errors: kInvalidArgument, with the name.
absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name);
// True if the rule's state is the two moments of adam. False: it is the
// velocity of sgd.
bool HasMoments(UpdateRule rule);

// Side that runs the optimizer.
enum class OptimizerPlace {
  // "server": Nereus runs the optimizer. The servers run it; for layers that go
  // without servers, the workers run it.
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
  // sgd and nesterov: share of the velocity that stays, in [0, 1).
  float momentum = 0.9f;
  // The update adds this number times the parameter to the gradient; adamw
  // takes learning_rate times this number of the parameter away from it. >= 0.
  float weight_decay = 0.0f;
  // adam and adamw: decay of the first and of the second moment, in [0, 1).
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;  // adam and adamw: added to the divisor, >= 1e-30.

  bool operator==(const OptimizerOptions&) const = default;

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Constants with which the reference networks learn well (docs/benchmarks.md,
// "Accuracy", has figures for the cnn).
inline constexpr OptimizerOptions kReferenceOptimizer = {
    .learning_rate = 0.02f, .weight_decay = 0.0005f};

// Course of the factor of a learning rate to a point from the point before it.
enum class RateCurve {
  kLinear,  // "linear": along a line.
  kCosine,  // "cosine": along half a wave, flat at both ends (Loshchilov and
            // Hutter, "SGDR", ICLR 2017, equation 5).
  kHold,    // "hold": stays, and changes at the point.
};

// Learning rate over the steps of a job: the optimizer's learning_rate times
// FactorAt. Each member computes the factor of a step by itself, and all get
// the same bits. A value type.
struct RateSchedule {
  // Point of the schedule: in step `step` the factor is `factor`.
  struct Point {
    int64_t step = 0;
    float factor = 1.0f;
    RateCurve curve = RateCurve::kLinear;  // Course from the point before.

    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points;  // Points by step. Empty: the factor is 1.

  bool operator==(const RateSchedule&) const = default;

  // Returns the factor of step `step`. Before the first point it is that of the
  // first point, after the last one that of the last.
  float FactorAt(int64_t step) const;

  // Returns the schedule as text: "none", or for each point STEP:FACTOR:CURVE,
  // without ":linear", joined by commas: "0:0.01,500:1,90000:0:cosine".
  std::string ToString() const;
  // Reads such a text. Errors: kInvalidArgument, the text is no schedule; steps
  // do not increase, or are not from 0 to 10^15; factors are not from 0 to
  // 10; there are more than 64 points.
  static absl::StatusOr<RateSchedule> Parse(absl::string_view text);
};

// Returns the constants of an update in step `step`: `options` with the
// learning rate of that step.
OptimizerOptions OptimizerAt(const OptimizerOptions& options,
                             const RateSchedule& schedule, int64_t step);

// Returns the number of arrays of optimizer state: 1 for the velocity, 2 for
// the first and the second moments.
int OptimizerStateCount(UpdateRule rule);

// Returns the name of state array `index` in a checkpoint: "velocity";
// "first_moment" or "second_moment". REQUIRES: 0 <= index <
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
//   step        number of updates done before this one, >= 0; used by adam
//               and adamw.
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
