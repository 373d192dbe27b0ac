#pragma once

#include <optional>

#include "absl/time/time.h"
#include "common/base/time_histogram.h"
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

}  // namespace nereus
