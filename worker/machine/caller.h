#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "worker/machine/fusion_switch.h"
#include "worker/machine/step_ledger.h"
#include "worker/machine/step_plan.h"
#include "worker/machine/worker_machine.h"

namespace nereus {

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
