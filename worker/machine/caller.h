#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "worker/machine/step_ledger.h"
#include "worker/machine/worker_machine.h"
#include "worker/public/client.h"

namespace nereus {

// A worker's part in the trials by which the coordinator tunes the fusion
// threshold (JobOptions::fusion_bytes). In a trial the worker switches to the
// coordinator's threshold in the step that the coordinator names, and measures
// how long steps take from then on. All workers switch in the same step:
// otherwise the trial would measure a mixture of two thresholds. Pure; the
// Caller owns it.
class FusionSwitch {
 public:
  // Takes a message of the coordinator, which replaces the last one. If the
  // coordinator repeats a message, the answer may have been lost, and OnBegin
  // returns it again.
  void OnSet(const SetFusion& set) {
    if (set_ == set) {
      unsaid_ = said_;
      return;
    }
    set_ = set;
    said_.reset();
    unsaid_.reset();
    switched_ = false;
    began_at_.reset();
    taken_.clear();
  }

  // Notes that the worker begins `step`. Returns the threshold that holds from
  // now on; nullopt if the threshold does not change.
  std::optional<int64_t> OnBegin(int64_t step) {
    if (!set_.has_value() || switched_ || step < set_->from_step) {
      return std::nullopt;
    }
    switched_ = true;
    switched_in_ = step;
    return set_->bytes;
  }

  // Notes that the worker has begun `step` at `now`. Returns the answer for the
  // coordinator if the trial is over. The answer has the median of the steps'
  // times, so that a step in which the computer was busy with something else
  // does not count.
  std::optional<FusionTimed> OnBegin(int64_t step, absl::Time now) {
    if (unsaid_.has_value()) return std::exchange(unsaid_, std::nullopt);
    if (!switched_ || set_->steps == 0 || said_.has_value() ||
        step < switched_in_ + kStepsIgnored) {
      return std::nullopt;
    }
    if (began_at_.has_value()) {
      taken_.push_back(absl::ToDoubleSeconds(now - *began_at_));
    }
    began_at_ = now;
    if (static_cast<int32_t>(taken_.size()) < set_->steps) return std::nullopt;
    const auto middle = taken_.begin() + set_->steps / 2;
    std::nth_element(taken_.begin(), middle, taken_.end());
    said_ = FusionTimed{set_->trial, step, *middle};
    return said_;
  }

 private:
  // Number of steps that are not measured after a switch: they may still wait
  // for frames that were sent with the old threshold.
  static constexpr int64_t kStepsIgnored = 2;

  std::optional<SetFusion> set_;  // The coordinator's last message.
  bool switched_ = false;    // True if the worker has the message's threshold.
  int64_t switched_in_ = 0;  // Step in which the worker switched to it.
  std::optional<absl::Time> began_at_;  // Begin of the step being measured.
  std::vector<double> taken_;           // Seconds of each measured step.
  std::optional<FusionTimed> said_;     // Answer that OnBegin has returned.
  std::optional<FusionTimed> unsaid_;   // Answer to return again.
};

// Shares out the examples of each step among the workers that take part in it.
//
// A step that some worker had begun when an epoch ended belongs to that epoch
// on every worker, even if the next epoch has other workers. Otherwise two
// workers could take the same examples: one worker by the shares of the old
// epoch, another worker by the shares of the new epoch.
//
// Example: three workers are in epoch 1, and worker 0 has begun step 7 when
// worker 2 is lost. Workers 0 and 1 do step 7 with thirds of its examples, and
// step 8, the first step of epoch 2, with halves.
class StepPlan {
 public:
  // Follows the job into its next epoch.
  void Enter(JobPtr job);

  // Returns the share of the worker `rank` in `step`. REQUIRES: the worker
  // takes part in the step; steps ascend from call to call.
  StepInfo InfoOf(int64_t step, int rank);

 private:
  // Epochs that steps may still belong to, in order; the last is the current.
  std::vector<JobPtr> epochs_;
};

// Passes the caller's calls about steps to the worker's current machine. When
// the job goes back to a checkpoint, the worker gets a new machine, and with it
// the next life begins. Lives are numbered from 1.
//
//   OnMachine --OnValuesFree--> machine starts --OnBegin--> step begins
//      ^                                          |   ^
//      '---- the job goes back                    '---' OnRetry, if the machine
//                                                       could not begin it yet
//
// Pure: the client's driver calls this class, and so does the simulated caller.
// The owner of the machines calls OnMachine before it destroys the machine of
// the last life.
class Caller {
 public:
  // Notes that `machine` is the worker's machine from now on, in life number
  // `life`. Starts the first machine at once. OnValuesFree starts a later
  // machine: until then the caller may still read the values that the machine
  // will write.
  void OnMachine(WorkerMachine* machine, int64_t life, Outbox& out);

  // Starts the machine, unless it is started already. Called when the caller
  // has acknowledged that the job went back: the machine may now write the
  // caller's values.
  void OnValuesFree(Outbox& out);

  // Notes that the worker has entered the job's next epoch.
  void OnEntered(JobPtr job) { steps_.Enter(std::move(job)); }

  // Takes a fusion threshold of the coordinator, and the step from which it
  // holds.
  void OnSetFusion(const SetFusion& set) { fusion_.OnSet(set); }

  // Begins the step that the caller asks for, and returns it. Returns nullopt
  // in two cases. If the machine cannot begin the step yet, OnRetry tries
  // again. If the job has gone back since the call, the caller has to ask
  // again.
  std::optional<StepInfo> OnBegin(const StepLedger::Call& call, int rank,
                                  Outbox& out);
  std::optional<StepInfo> OnRetry(int rank, Outbox& out);

  // Forgets the step that OnRetry would begin: the caller leaves the job.
  void OnLeave() { waits_for_.reset(); }

  // Notes, for the trial of a fusion threshold, that `step` has begun at `now`.
  // Returns the message for the coordinator if the trial is over.
  std::optional<FusionTimed> TimeFusion(int64_t step, absl::Time now) {
    return fusion_.OnBegin(step, now);
  }

  // True if the caller waits for a step that the machine has not begun yet.
  bool is_waiting() const { return waits_for_.has_value(); }
  // Returns the machine of life `life`; null if that life is over.
  WorkerMachine* machine(int64_t life) const {
    return life == life_ ? machine_ : nullptr;
  }
  // Returns the machine of this life; null before the first life.
  WorkerMachine* machine() const { return machine_; }

 private:
  WorkerMachine* machine_ = nullptr;  // Owned by the member.
  int64_t life_ = 0;                  // Number of the machine's life.
  int64_t begun_life_ = 0;   // Life in which the last step began; 0: no step.
  bool is_started_ = false;  // True if the machine has started.
  std::optional<int64_t> waits_for_;  // Step that OnRetry begins.
  StepPlan steps_;                    // Says which examples a step has.
  FusionSwitch fusion_;               // Says which threshold a step has.
};

}  // namespace nereus
