#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// For StepTimes alone: one step.
struct TimedStep {
  absl::Time began;
  absl::Time mark;           // What computes now does so since then,
  absl::Duration before;     // and did so before the last wait.
  std::optional<int> layer;  // Whose forward that is.
  std::optional<int> first_pushed;
  absl::Duration first_interval;  // Up to that push, from the last wait on.
  size_t pushed = 0;
  absl::Duration took;
  std::vector<LayerTime> times;
};

// What layers compute, from when the caller waits for them and pushes them: the
// time between two pushes is the second layer's backward, that from the end of
// a wait on is the layer's forward. Time spent waiting counts for nobody.
//
// Where the caller does not wait layer by layer, forward as a whole is known,
// together with the backward of the layer that is pushed first, which is taken
// to be to the other layers' as its operations are to theirs. What the caller
// does before forward, reading its examples, counts as forward.
//
// Pure; medians over the last steps.
class StepTimes {
 public:
  // `layers`: the model's.
  explicit StepTimes(absl::Span<const LayerSpec> layers);

  // The caller begins a step.
  void OnBegin(absl::Time now);
  // It waited for a layer of the step before.
  void OnWait(int layer, absl::Time from, absl::Time to);
  void OnPush(int layer, absl::Time now);

  // Whether enough steps are measured.
  bool enough() const { return steps_.size() >= kStepsMin; }

  // REQUIRES: enough().
  std::vector<LayerTime> times() const;
  absl::Duration step_time() const;  // From begin to begin.

 private:
  static constexpr size_t kStepsMin = 8;
  static constexpr size_t kStepsMax = 16;
  // At the start caches are cold, and memory is new.
  static constexpr int kStepsIgnored = 2;

  // Splits what is only known as a sum.
  void Resolve(TimedStep& step) const;

  const size_t layers_;
  std::vector<double> operations_;  // By layer: its share of a step's.
  int ignored_ = 0;
  std::optional<TimedStep> step_;  // Under way.
  std::deque<TimedStep> steps_;    // The last ones.
};

}  // namespace nereus
