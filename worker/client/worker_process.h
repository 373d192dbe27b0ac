#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/driver/member_process.h"
#include "common/protocol/job.h"
#include "common/rpc/control_server.h"
#include "worker/client/host_client.h"
#include "worker/client/round_table.h"
#include "worker/client/turn_guard.h"
#include "worker/client/worker_pages.h"
#include "worker/machine/caller.h"
#include "worker/machine/worker_machine.h"
#include "worker/measure/meter.h"

namespace nereus {

// Part of a client that the driving thread runs: the worker's machine, and the
// reports to the coordinator. A worker that goes back to the base round gets a
// new machine. This class posts each call of the caller's threads as an event,
// which the driving thread handles. The outcome of the call comes back through
// the RoundTable.
//
//   caller's threads --Push, Hurry ...-> driving thread: Caller, WorkerMachine
//          ^                                  |              |
//          '------- RoundTable <--------------'        MemberProcess
//
// Owned by the client. Thread-safe after Join.
class WorkerProcess {
 public:
  // `specs` are the layers' specs. `turns`: turns at a shared device; null: the
  // device is not shared. `options`, `layers` and `turns` must outlive this.
  WorkerProcess(const HostClientOptions& options,
                const std::vector<HostLayerBinding>& layers,
                const std::vector<LayerSpec>& specs,
                std::shared_ptr<RoundTable> rounds, TurnGuard* turns);
  ~WorkerProcess();

  // Listens at the ports, and asks the coordinator to admit the worker. The
  // RoundTable tells when the first values have arrived. Errors: a port is in
  // use.
  absl::Status Join(std::vector<LayerSpec> specs);
  // Tells health checks that the worker is ready.
  void SetReady() { control_->SetReady(true); }

  // ---- The caller's calls.

  // Tells the machine that it may write the caller's parameters and state
  // (Caller::OnValuesFree). Called after the job went back.
  void FreeValues();
  // Begins the step of `call` as soon as the machine can.
  void BeginStep(const StepLedger::Call& call);
  // Push a layer. `is_fit`: false if the step must be skipped because of this
  // layer's values. `mean`: see Syncer::Push.
  void Push(int layer, int64_t step, const StepLedger::Pushed& pushed,
            bool is_fit, Buffer gradient, Buffer mean);
  void PushFactors(int layer, int64_t step, const StepLedger::Pushed& pushed,
                   bool is_fit, FactorBuffers factors);
  // Tells the machine that the caller waits for a layer: the machine sends the
  // layer if it has deferred it.
  void Hurry(int layer);
  // Asks the coordinator for a checkpoint.
  void WantCheckpoint();
  // Tells the coordinator what the caller has seen of its factors
  // (Member::OnFactorRows).
  void SetFactorRows(FactorRows report);
  // Sends the coordinator the value of the gathering that waits for its answer
  // in the ledger, if there is one. Sends the value again with each heartbeat
  // until the ledger has the answer.
  void Gather();
  // Ends the job for all workers, because of `reason`.
  void Fail(const std::string& reason);
  // Leaves the job after the last step that was pushed. `early`: Leave::early.
  void Leave(const StepLedger::Call& last, bool early);
  // Makes a thread that is in DriveUntil evaluate its `done` again.
  void Wake();
  // Drives the machine on the calling thread until `done` returns true
  // (MachineDriver::DriveUntil).
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
    process_->DriveUntil(done, deadline);
  }

  // ---- State.

  // The job as of the first epoch, and this worker's rank. The model but for
  // its rows, and all options but fusion_bytes, are the same in later epochs.
  // REQUIRES: the first
  // values have come.
  const Job& job() const { return *job_; }
  int rank() const { return rank_; }
  // Returns the current epoch; null before the first. The routes of its plan,
  // and the rows of its model, change only between two steps of the caller, or
  // when the job goes back.
  std::shared_ptr<const EpochStart> epoch() const ABSL_LOCKS_EXCLUDED(mu_);
  // Rows of the layer's factors in the job, and whether the plan sends factors
  // of so many rows, as of the current epoch. Take no lock.
  int64_t rows(int layer) const { return factors_[layer].rows; }
  bool sends_factors(int layer) const { return factors_[layer].are_sent; }
  // Returns what a layer waits for, for messages. Waits for the driving thread
  // at most for `timeout`, and at most for 5 seconds. REQUIRES: the first
  // values have come.
  std::string DescribeMissing(int layer, absl::Duration timeout);
  // Returns costs, traffic and measurements of the job so far. REQUIRES: the
  // first values have come.
  ClientReport Report() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the meter of the caller's steps, which synchronises itself.
  Meter& meter() { return meter_; }

 private:
  MemberProcess::Events MakeEvents();
  JoinRequest MakeRequest(std::vector<LayerSpec> specs) const;
  std::unique_ptr<Machine> MakeMachine(const EpochStart& start, Outbox& out);

  // Events of the machine, its driver and the coordinator.
  void OnLayerDone(const LayerDone& done);
  void OnEntered(const std::shared_ptr<const EpochStart>& start)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnHeard(const CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the value of the gathering that has no answer yet, if there is one.
  void SendGather();
  // Returns a heartbeat with the epoch, and with the oldest round that waits
  // for another member, if there is one. Calls SendGather.
  Heartbeat TakeStock();
  // Sets the fields for the last step begun, the last step pushed and the last
  // round done in a heartbeat that is about to be sent.
  void UpdateHeartbeat(Heartbeat& heartbeat) const;
  // Tells the caller that the step has begun. Does nothing if `begun` is
  // absent, because the step has not begun.
  void TellBegun(std::optional<StepInfo> begun);
  // Tries again to begin the step that the caller waits for, if there is one.
  void RetryBegin();
  // Gives the turn at a shared device back if the job has failed or gone back,
  // whatever the caller does meanwhile.
  void GiveTurnIfIdle();
  // Sends probes if no round is open.
  void ProbeIfIdle();

  // Borrowed from the client.
  const HostClientOptions& options_;
  const std::vector<HostLayerBinding>& layers_;
  // Shared with the client, and with the buffers that the table counts.
  const std::shared_ptr<RoundTable> rounds_;
  TurnGuard* const turns_;  // Null: the worker has its own device.
  Meter meter_;             // Times the caller's steps.
  std::unique_ptr<ControlServer> control_;  // Answers health checks.
  WorkerPages pages_;                       // Metrics.

  // Set when the first machine is made, and constant from then on.
  int rank_ = 0;  // This worker's rank.
  JobPtr job_;    // The job as of the first epoch.

  // Part of the plan that the caller's threads read in each push.
  struct FactorPlan {
    std::atomic<int64_t> rows = kRowsNotKnown;
    std::atomic<bool> are_sent = false;
  };
  std::vector<FactorPlan> factors_;  // Plans of the layers.

  // Used by the driving thread only.
  Caller caller_;         // Passes the calls to the machine.
  ProbePlan probe_plan_;  // Measurements by probes in this epoch.
  // True once an operator has asked this worker to leave. Set by threads of the
  // session.
  std::atomic<bool> should_leave_ = false;

  mutable Mutex mu_;
  // Round of the newest checkpoint, if the coordinator has said at the end of
  // the job that there is one.
  std::optional<int64_t> saved_round_ ABSL_GUARDED_BY(mu_);
  // Current epoch; null before the first.
  std::shared_ptr<const EpochStart> epoch_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<MemberProcess> process_;  // Last: its threads use the above.
};

}  // namespace nereus
