#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/fusion_tuner.h"
#include "common/protocol/membership.h"

namespace nereus {

// Leads the workers of a job through the trials of a FusionTuner, which looks
// for the threshold of fusion with the shortest iterations. A worker defers
// pushed layers until they have this many bytes together.
//
//   trial --all workers have answered--> next trial, or done
//   trial --an epoch begins--> the same trial again
//   trial, done --Restart: another plan, or a better prediction--> first trial
//
// In a trial, the coordinator tells all workers a threshold and the step from
// which they use it. Each worker measures some steps with this threshold, and
// answers with their median time. The longest time of all workers counts,
// because they all wait for the slowest one.
//
// All workers should switch to a threshold in the same step. The coordinator
// chooses a step that is later than all steps which the workers had begun when
// they answered. A worker that hears of this step too late switches later. The
// trial is then less exact; the results of the job are the same.
//
// Pure; the coordinator owns it.
class FusionTuning {
 public:
  // `on`: false if fusion is not tuned. `first`: threshold of the first trial.
  explicit FusionTuning(bool on, int64_t first = FusionTuner::kBytesFirst)
      : on_(on), first_(first), tuner_(first) {}

  // Checks the answer of a worker. Errors: kInvalidArgument, with its values.
  static absl::Status Check(const FusionTimed& timed);

  // Starts an epoch with these workers. Returns the message for all workers;
  // nothing if fusion is not tuned. `begun_step`: no worker is known to have
  // begun a later step.
  std::optional<SetFusion> OnEpoch(std::vector<int32_t> workers,
                                   int64_t begun_step);

  // Starts the trials again with the threshold `first`, and forgets all
  // answers. Returns the message for all workers; nothing if fusion is not
  // tuned.
  std::optional<SetFusion> Restart(int64_t first, int64_t begun_step);

  // Threshold of the first trial.
  int64_t first() const { return first_; }
  // Threshold with which predictions are compared: the best one, or the first
  // one while the trials go on. The caller restarts the trials only for a
  // threshold that is predicted to be faster.
  int64_t reference() const { return done() ? tuner_.best() : first_; }

  // Notes the answer of a worker. If it was the last answer to the trial,
  // returns the message for all workers; otherwise nothing. REQUIRES:
  // Check(timed) is OK.
  std::optional<SetFusion> OnTimed(int32_t worker, const FusionTimed& timed);

  // Last message to the workers, for a worker that may not have got it.
  const std::optional<SetFusion>& told() const { return told_; }

  // True once the trials are over.
  bool done() const { return on_ && tuner_.done(); }
  // Threshold of the trial, or the best one once done; empty if not tuned.
  std::optional<int64_t> bytes() const;
  // Returns the line for the log about the best threshold. REQUIRES: done().
  std::string DescribeBest() const;
  // Tuner that chooses the thresholds.
  const FusionTuner& tuner() const { return tuner_; }

 private:
  // Makes the message that begins the trial or, once the trials are over, the
  // message that sets the best threshold.
  const SetFusion& Next(int64_t begun_step);

  const bool on_;
  int64_t first_;
  FusionTuner tuner_;
  int32_t trial_ = 0;              // Number of the trial; an answer names it.
  std::optional<SetFusion> told_;  // Last message to the workers.
  // Slowest worker's answer to the last complete trial; 0: none yet.
  double step_seconds_ = 0;
  std::vector<int32_t> workers_;            // Ranks of the epoch's workers.
  std::map<int32_t, FusionTimed> answers_;  // Answers to the trial, by worker.
};

}  // namespace nereus
