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

// Brings the caller's steps to the worker's machine, through the lives of that
// machine: a job that goes back to a checkpoint gives the worker a new machine,
// and its life has the next number.
//
//   OnMachine --OnValuesFree--> machine starts --OnBegin--> step begins
//      ^                                          |   ^
//      '---- the job goes back                    '---' OnRetry, if the machine
//                                                       was frozen
//
// Pure: the client's driver calls it, and so does the simulated caller. The
// owner of the machine calls OnMachine before it destroys the previous machine.
class Caller {
 public:
  // Follows `machine`, the worker's machine from now on, in life `life`. A
  // first machine starts at once. A later one starts at OnValuesFree, since the
  // caller may still read the values that the machine will write.
  void OnMachine(WorkerMachine* machine, int64_t life, Outbox& out);

  // Lets the machine write the caller's values: the caller has acknowledged
  // that the job went back.
  void OnValuesFree(Outbox& out);

  // Follows the job into its next epoch.
  void OnEntered(JobPtr job) { steps_.Enter(std::move(job)); }

  // Takes the coordinator's fusion threshold, which holds from a later step on.
  void OnSetFusion(const SetFusion& set) { fusion_.OnSet(set); }

  // Begins the step that the caller asks for. Returns the step if it begins
  // now. Otherwise there are two cases. The machine cannot begin it yet:
  // OnRetry tries again. The job has gone back since the call: the caller asks
  // again.
  std::optional<StepInfo> OnBegin(const StepLedger::Call& call, int rank,
                                  Outbox& out);
  std::optional<StepInfo> OnRetry(int rank, Outbox& out);

  // Drops a request for a step: the caller leaves the job.
  void OnLeave() { waits_for_.reset(); }

  // Measures a trial of a fusion threshold, in the step that has just begun.
  // Returns the message for the coordinator if the trial is over.
  std::optional<FusionTimed> TimeFusion(int64_t step, absl::Time now) {
    return fusion_.OnBegin(step, now);
  }

  // True if the caller waits for a step that the machine did not let it begin.
  bool is_waiting() const { return waits_for_.has_value(); }
  // The machine of life `life`; null if that life is over.
  WorkerMachine* machine(int64_t life) const {
    return life == life_ ? machine_ : nullptr;
  }
  // The machine; null before the first.
  WorkerMachine* machine() const { return machine_; }

 private:
  WorkerMachine* machine_ = nullptr;  // Owned by the member.
  int64_t life_ = 0;                  // Number of the machine's life.
  int64_t begun_life_ = 0;   // Life in which the last step began; 0: none has.
  bool is_started_ = false;  // The machine may write the caller's values.
  std::optional<int64_t> waits_for_;  // Step that OnRetry begins.
  StepPlan steps_;                    // Says which examples a step has.
  FusionSwitch fusion_;               // Says which fusion threshold it has.
};

}  // namespace nereus
