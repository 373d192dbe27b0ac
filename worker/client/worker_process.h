#pragma once

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
#include "worker/machine/caller.h"
#include "worker/machine/worker_machine.h"
#include "worker/measure/meter.h"

namespace nereus {

// The side of a client that the driving thread runs: the worker's machine, and
// the reports to the coordinator. A worker that goes back to the base round
// gets a new machine. A call of the caller's threads is posted as an event,
// which the driving thread handles. Its outcome comes back through the
// RoundTable.
//
//   caller's threads --Push, Wait ...--> driving thread: Caller, WorkerMachine
//          ^                                  |              |
//          '------- RoundTable <--------------'        MemberProcess
//
// Owned by the client. Thread-safe after Join.
class WorkerProcess {
 public:
  // `specs` are the layers' specs. `options` and `layers` must outlive this.
  WorkerProcess(const HostClientOptions& options,
                const std::vector<HostLayerBinding>& layers,
                const std::vector<LayerSpec>& specs,
                std::shared_ptr<RoundTable> rounds);
  ~WorkerProcess();

  // Listens, and asks the coordinator to take the worker in; the RoundTable
  // tells when the first values have come. Errors: the ports are in use.
  absl::Status Join(std::vector<LayerSpec> specs);
  // Tells health checks that the worker is ready.
  void SetReady() { control_->SetReady(true); }

  // ---- The caller's calls.

  // Lets the machine write the caller's parameters and state from now on
  // (Caller::OnValuesFree). Called after the job went back.
  void FreeValues();
  // Begins a step as soon as the machine can.
  void BeginStep(const StepLedger::Call& call);
  // Each pushes a layer. `is_fit`: false if the step must be skipped because of
  // the layer's values.
  void Push(int layer, int64_t step, const StepLedger::Pushed& pushed,
            bool is_fit, Buffer gradient);
  void PushFactors(int layer, int64_t step, const StepLedger::Pushed& pushed,
                   bool is_fit, FactorBuffers factors);
  // Makes the machine send what it defers of a layer.
  void Wait(int layer);
  // Asks the coordinator for a checkpoint.
  void WantCheckpoint();
  // Sends the coordinator the value of the gathering that waits for its answer
  // in the ledger, if one does. Sends it again until the ledger has the answer.
  void Gather();
  // Ends the job for all workers.
  void Fail(const std::string& reason);
  // Leaves the job after the last step that was pushed.
  void Leave(const StepLedger::Call& last);
  // Makes a thread in DriveUntil evaluate `done` again.
  void Wake();
  // Drives on the calling thread (MachineDriver::DriveUntil).
  void DriveUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
    process_->DriveUntil(done, deadline);
  }

  // ---- State.

  // The job as of the first epoch, and this worker's rank. The model, and all
  // options but fusion_bytes, are the same in later epochs. REQUIRES: the first
  // values have come.
  const Job& job() const { return *job_; }
  int rank() const { return rank_; }
  // Returns the current epoch; null before the first. The routes of its plan
  // change only between two steps of the caller, or when the job goes back.
  std::shared_ptr<const EpochStart> epoch() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what a layer waits for, for messages. Waits for the driving thread,
  // for `timeout` or 5 seconds at most, whichever is shorter. REQUIRES: the
  // first values have come.
  std::string DescribeMissing(int layer, absl::Duration timeout);
  // Returns costs, traffic and measurements of the job so far. REQUIRES: the
  // first values have come.
  ClientReport Report() const ABSL_LOCKS_EXCLUDED(mu_);
  // Measures the caller's steps; synchronises itself.
  Meter& meter() { return meter_; }

 private:
  MemberProcess::Events MakeEvents();
  JoinRequest MakeRequest(std::vector<LayerSpec> specs) const;
  std::unique_ptr<Machine> MakeMachine(const EpochStart& start, Outbox& out);
  void OnLayerDone(const LayerDone& done);
  void OnEntered(const std::shared_ptr<const EpochStart>& start)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnHeard(const CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the value of the gathering that has no answer yet, if there is one.
  void SendGather();
  // Returns a heartbeat with the epoch, and with the round that has waited
  // longest, if one waits.
  Heartbeat TakeStock();
  // Sets the newest step and round in a heartbeat that is about to be sent.
  void UpdateHeartbeat(Heartbeat& heartbeat) const;
  // Tells the caller that the step has begun. Absent: it has not; does nothing.
  void TellBegun(std::optional<StepInfo> begun);
  // Tries again to begin the step that the caller waits for, if it waits.
  void RetryBegin();
  // Sends probes to a server if no round is open.
  void ProbeIfIdle();

  // Borrowed from the client.
  const HostClientOptions& options_;
  const std::vector<HostLayerBinding>& layers_;
  // Shared with the client, and with the buffers that the table counts.
  const std::shared_ptr<RoundTable> rounds_;
  Meter meter_;                             // Times the caller's steps.
  std::unique_ptr<ControlServer> control_;  // Answers health checks.

  // Constant once the first machine is made.
  int rank_ = 0;  // This worker's rank.
  JobPtr job_;    // The job as of the first epoch.

  // Used by the driving thread only.
  Caller caller_;                        // Brings the calls to the machine.
  std::vector<int32_t> probed_servers_;  // Ranks of the shards to probe.

  mutable Mutex mu_;
  // Round of the newest checkpoint, if the coordinator has said at the end of
  // the job that there is one.
  std::optional<int64_t> saved_round_ ABSL_GUARDED_BY(mu_);
  // Current epoch; null before the first.
  std::shared_ptr<const EpochStart> epoch_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<MemberProcess> process_;  // Last: its threads use the above.
};

}  // namespace nereus
