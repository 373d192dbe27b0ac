#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/time_histogram.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/protocol/activity.h"
#include "common/protocol/frame.h"
#include "common/protocol/span.h"
#include "common/trace/span_recorder.h"

namespace nereus {

// Sums up how the caller of a client spends the time of its steps: in forward,
// in backward, in what follows, and in calls that wait (Activity).
//
// A step lasts from one BeginStep to the next. Time up to the first push is
// forward. After that, time that ends with a push is backward, and time that
// ends with a wait or with the next BeginStep is `other`. So time in which the
// caller loads its examples before the first push counts as forward.
//
// While the job is traced, it also gives each of these times to a SpanRecorder.
// A span of backward has the layer that the caller pushed at its end.
//
// Reads no clock. Not thread-safe.
class StepPhases {
 public:
  // Sets the recorder. It is not owned, and must outlive this.
  void set_recorder(SpanRecorder* recorder) { recorder_ = recorder; }

  // Handles a call of BeginStep that has begun a step.
  void OnBegin(int64_t step, absl::Time from, absl::Time to);
  // Handles any other call that waits. `layer`: index of the layer that it
  // waits for; -1: none.
  void OnWait(int layer, absl::Time from, absl::Time to);
  // Handles a wait for the turn at a shared device.
  void OnTurn(absl::Time from, absl::Time to);
  // Handles a push of a layer.
  void OnPush(int layer, absl::Time now);

  // Returns the sums so far. Fields about traffic are empty.
  const Activity& sums() const { return sums_; }
  // Returns the times from the begin of each step to that of the next one.
  const TimeHistogram& steps() const { return steps_; }

 private:
  // Adds the time since mark_ to the sum of a phase, and moves mark_ to `now`.
  // `kind`: kForward, kBackward, kOther or kWait.
  void Add(absl::Time now, SpanKind kind, int layer);
  // Returns the sum of a phase.
  absl::Duration& SumOf(SpanKind kind);

  SpanRecorder* recorder_ = nullptr;  // Null: there is none.
  int64_t step_ = kInitialRound;      // Step that the caller has begun last.
  Activity sums_;
  TimeHistogram steps_;                 // See steps().
  std::optional<absl::Time> begun_at_;  // Time when the last step began.
  std::optional<absl::Time> mark_;  // End of the time in sums_; nothing before
                                    // the first step.
  bool has_pushed_ = false;         // True after the first push of the step.
};

// Times of one step. For StepTimes only.
struct TimedStep {
  absl::Time began;  // Time of OnBegin.
  // Time at which the last event ended (begin, wait or push). The caller
  // computes since then.
  absl::Time mark;
  // Time of computing between the last push and the last wait after it. Counts
  // for the layer of the next push. 0 before the first push.
  absl::Duration before;
  // Layer of the last wait before the first push: its forward is running.
  // Nothing if the caller has not waited for a layer in this step.
  std::optional<int> layer;
  std::optional<int> first_pushed;  // Layer that was pushed first.
  // Time from the last wait to the first push: the forward of the layer of that
  // wait, and a backward. Without a wait, time from the begin of the step to
  // the first push: the whole forward pass and a backward.
  absl::Duration first_interval;
  size_t pushed = 0;             // Number of pushes.
  absl::Duration took;           // Time from the step's begin to the next one.
  std::vector<LayerTime> times;  // Measured forward and backward, by layer.
};

// Measures how long each layer computes, from the times at which the caller
// waits for layers and pushes them. The time between two pushes is the backward
// of the layer that is pushed second. The time after the wait for a layer is
// the forward of that layer. Time spent waiting does not count.
//
// If a caller waits for all layers at the end of a step, the next step has no
// wait before its first push. The time from the begin of that step to the first
// push contains the whole forward pass and the backward of the layer that is
// pushed first. That backward is estimated from the layer's share in the
// operations of the model. Work of the caller before forward, such as reading
// its examples, counts as forward.
//
// Pure. Results are medians over the last kStepsMax steps.
class StepTimes {
 public:
  // `layers`: all layers of the model.
  explicit StepTimes(absl::Span<const LayerSpec> layers);

  // Handles the begin of a step.
  void OnBegin(absl::Time now);
  // Handles a wait for `layer` that began at `from` and ended at `to`.
  void OnWait(int layer, absl::Time from, absl::Time to);
  // Handles a wait for the turn at a shared device. The step counts as if it
  // had been shorter by this wait.
  void OnTurn(absl::Time from, absl::Time to);
  // Handles a push of `layer`.
  void OnPush(int layer, absl::Time now);

  // True if kStepsMin steps are measured.
  bool enough() const { return steps_.size() >= kStepsMin; }

  // Returns the compute times, by layer. REQUIRES: enough().
  std::vector<LayerTime> times() const;
  // Returns the time from the begin of a step to the begin of the next step.
  // REQUIRES: enough().
  absl::Duration step_time() const;
  // True if the caller waits for layers between the begin of a step and its
  // first push, and not for all of them at the end of the step before.
  // REQUIRES: enough().
  bool waits_in_forward() const { return steps_.back().layer.has_value(); }

 private:
  // Number of steps that a result needs at least, and that it uses at most.
  static constexpr size_t kStepsMin = 8;
  static constexpr size_t kStepsMax = 16;
  // Number of first steps that are ignored: caches are cold and memory is new.
  static constexpr int kStepsIgnored = 2;

  // Splits the first interval of a step into a forward and a backward.
  void Resolve(TimedStep& step) const;

  const size_t layers_;  // Number of layers.
  // Share of each layer in the operations of a step.
  std::vector<double> operations_;
  int steps_seen_ = 0;             // Number of complete steps so far.
  std::optional<TimedStep> step_;  // Current step.
  std::deque<TimedStep> steps_;    // Last steps.
};

}  // namespace nereus
