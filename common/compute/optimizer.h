#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compute/update_rules.h"

namespace nereus {

enum class UpdateRule {
  kSgd,   // "sgd", with momentum
  kAdam,  // "adam"
};

absl::string_view UpdateRuleName(UpdateRule rule);
absl::StatusOr<UpdateRule> ParseUpdateRule(absl::string_view name);

// Where the optimizer runs.
enum class OptimizerPlace {
  kServer,  // "server": parameters and optimizer state live on the shards.
  kWorker,  // "worker": the shards only average; the caller's optimizer runs.
};

absl::string_view OptimizerPlaceName(OptimizerPlace place);
absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name);

// What a closed round does to the parameters. One for the whole job.
struct OptimizerOptions {
  UpdateRule rule = UpdateRule::kSgd;
  float learning_rate = 0.01f;
  float momentum = 0.9f;      // sgd
  float weight_decay = 0.0f;  // Added to the gradient, times the parameter.
  float beta1 = 0.9f;         // adam
  float beta2 = 0.999f;       // adam
  float epsilon = 1e-8f;      // adam

  bool operator==(const OptimizerOptions&) const = default;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// What the reference networks learn well with: 98.5 % or more of held-out MNIST
// digits after 5 epochs with 128 images a step in all, for each of five seeds.
inline constexpr OptimizerOptions kReferenceOptimizer = {
    .learning_rate = 0.02f, .weight_decay = 0.0005f};

// Floats of state per parameter: sgd has the velocity, adam both moments.
int OptimizerStateCount(UpdateRule rule);

// What to call array `index` of them in a file: "velocity"; "first_moment",
// "second_moment". REQUIRES: 0 <= index < OptimizerStateCount(rule).
absl::string_view OptimizerStateName(UpdateRule rule, int index);

// The most that any rule has.
inline constexpr int kOptimizerStatesMax = 2;

// The constants of a step. `step`: updates done before it, >= 0.
SgdStep SgdStepOf(const OptimizerOptions& options, float gradient_scale);
AdamStep AdamStepOf(const OptimizerOptions& options, int64_t step,
                    float gradient_scale);

// One step over `length` parameters, all arrays float32 in host memory, by
// common/compute/update_rules.h.
//
//   step        updates done before this one, >= 0; used by adam.
//   state       {OptimizerStateCount * length}, zero before the first step: the
//               velocity, or the first moments and then the second moments.
//   updated     may be `parameters` itself; no other arrays overlap.
void ApplyOptimizer(const OptimizerOptions& options, int64_t step,
                    int64_t length, float gradient_scale, const float* gradient,
                    const float* parameters, float* state, float* updated);

}  // namespace nereus
