#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/fusion_tuner.h"
#include "common/protocol/membership.h"

namespace nereus {

// Leads a job's workers through the trials of a FusionTuner: all are told a
// threshold and the step from which it counts, measure some steps with it, and
// answer; when all have, the next trial begins. The slowest of them is what an
// iteration took.
//
// All switch in the same step, which is ahead of what they were at when they
// answered. One that hears too late switches a step later: nothing but the time
// depends on it.
//
// An epoch begins the trial under way anew, another plan all of them.
//
// Pure; the coordinator owns it.
class FusionTuning {
 public:
  // Not at all, unless `on`. Begins with `first`.
  explicit FusionTuning(bool on, int64_t first = FusionTuner::kBytesFirst)
      : on_(on), first_(first), tuner_(first) {}

  // OK, or kInvalidArgument.
  static absl::Status Check(const FusionTimed& timed);

  // An epoch with these workers begins; what they are to be told, if anything.
  // `begun_step`: the last one that any of them has begun, as far as is known.
  std::optional<SetFusion> OnEpoch(std::vector<int32_t> workers,
                                   int64_t begun_step);

  // Begins anew with `first`: what has been measured counts no more. What all
  // are to be told, if anything.
  std::optional<SetFusion> Restart(int64_t first, int64_t begun_step);

  // Where it began.
  int64_t first() const { return first_; }

  // A worker's answer; what all are to be told then, if it was the last one.
  // REQUIRES: Check(timed) is OK.
  std::optional<SetFusion> OnTimed(int32_t worker, const FusionTimed& timed);

  // What the workers were told last: for one who may not have heard it.
  const std::optional<SetFusion>& told() const { return told_; }

  // What it came to: the trials are over.
  bool done() const { return on_ && tuner_.done(); }
  // The threshold as of now; nothing if it is not tuned.
  std::optional<int64_t> bytes() const;
  const FusionTuner& tuner() const { return tuner_; }

 private:
  const SetFusion& Next(int64_t begun_step);

  const bool on_;
  int64_t first_;
  FusionTuner tuner_;
  int32_t trial_ = 0;
  std::optional<SetFusion> told_;
  double step_seconds_ = 0;  // Of the last trial.
  std::vector<int32_t> workers_;
  std::map<int32_t, FusionTimed> answers_;  // To this trial, by worker.
};

}  // namespace nereus
