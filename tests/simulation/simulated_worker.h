#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"
#include "common/protocol/outbox.h"
#include "tests/simulation/simulation_options.h"
#include "worker/machine/caller.h"
#include "worker/machine/step_ledger.h"
#include "worker/machine/worker_machine.h"

namespace nereus {

class SimulatedDevice;
class SimulatedProcess;
struct SimulatedWorld;

// Training loop of one worker on virtual time. It stands for the program of a
// user and for the client.
//
//   TryStep --machine lets the step begin--> backward, last layer first,
//      ^                                     a push for each layer
//      |                                            |
//      '-- all layers are done: the caller's optimizer, if the job has one
//
// The loop uses two parts of the real client: StepLedger decides which call may
// come next, and Caller brings the call to the machine of the current life.
// There are no threads, and the time to compute a layer is drawn. A loop that
// called WorkerMachine without these parts would test a protocol that no user
// runs.
class SimulatedWorker {
 public:
  // Neither is owned; both must outlive this.
  SimulatedWorker(SimulatedWorld* world, SimulatedProcess* process);
  ~SimulatedWorker();

  // Makes the machine of the worker's next life, with new memory.
  std::unique_ptr<Machine> MakeMachine(const EpochStart& start, Outbox& out);
  // Forgets the machine, because the process has died.
  void OnDeath();
  // Takes note that the worker has entered an epoch.
  void OnEntered(JobPtr job) { caller_.OnEntered(std::move(job)); }

  // Begins the next step, if more steps are wanted and the machine allows it.
  // REQUIRES: the worker is between two steps.
  void TryStep();
  // Takes the result of a round from the machine.
  void OnLayerDone(const LayerDone& done);
  // Takes the coordinator's answer of a gathering.
  void OnGathered(const Gathered& answer);
  // Takes the order of turns at a shared device from the coordinator.
  void OnTurnRule(const TurnRule& rule);
  // Lets the worker leave once the step under way is done. If the job goes back
  // afterwards, the worker does its steps again, unless it leaves `early`
  // (Leave::early).
  void LeaveSoon(bool early);
  // Makes each computation take `factor` times as long.
  void set_slowness(double factor) { slowness_ = factor; }

  // Returns the message of a gathering without an answer, to send it again.
  std::optional<Gather> UnansweredGather() {
    return ledger_.gathering().Unanswered();
  }
  // Returns the worker's next heartbeat to the coordinator.
  Heartbeat MakeHeartbeat();

  // True if the worker has done `steps` steps. Also true if the worker joins,
  // has not got its first values, and begins with the step after these.
  bool HasDone(int64_t steps) const;
  // Returns a text for each layer of the open step that waits: what it waits
  // for.
  std::vector<std::string> DescribeWaits() const;

  // Returns the machine of this life; null if the worker is not admitted or
  // dead.
  const WorkerMachine* machine() const { return machine_; }
  bool has_left() const { return has_left_; }
  // True if the worker has the turn at a device that it shares.
  bool HasTurn() const;
  // True if the worker waits for other members.
  bool IsWaiting();
  // Rank of the worker; -1 before it is admitted.
  int rank() const { return rank_; }
  // Returns the open step, or the next one between two steps.
  int64_t step() const { return step_; }
  // Returns the worker's parameters of a layer.
  absl::Span<const float> parameters(int layer) const;
  // Returns the same memory, for a test that changes parameters behind the
  // job's back (SimulatedClusterOptions::corrupts).
  absl::Span<float> mutable_parameters(int layer);
  // Returns the mean gradient of a layer's last round. REQUIRES: the worker
  // runs the optimizer.
  absl::Span<const float> mean_gradient(int layer) const;

 private:
  // Memory of one layer.
  struct Layer {
    Buffer parameters;
    Buffer state;     // Optimizer's state, if the worker runs the optimizer.
    Buffer gradient;  // Gradient that the worker pushes.
    Buffer mean;      // Last mean gradient; may share memory with `gradient`.
    Buffer output_gradient;  // Factor of a fully connected layer; else empty.
    Buffer input;            // The other factor; else empty.
  };

  // Allocates the layers' memory, with the parameters that the worker brings.
  std::vector<LayerMemory> Allocate(const Job& job);
  // True if the workload gives this layer's gradient as factors.
  bool HasFactors(int layer) const;
  int layer_count() const { return static_cast<int>(layers_.size()); }

  bool LeavesBefore(int64_t step) const {
    return leaves_before_.has_value() && step >= *leaves_before_;
  }
  void Leave();
  // True if the open step has a gathering that has not begun. Every third step
  // has one, between its begin and its first push: workers that join wait for
  // values that others send with that push.
  bool MustGather() const;
  void StartGathering();
  // Asks the machine to begin `step`. Returns true if the step has begun.
  bool Begin(int64_t step);
  // Computes and pushes the gradient of `layer`, then those of earlier layers.
  void Backward(int layer);
  // Waits for the layers in forward order, with waits_in_forward.
  void Forward(int layer);
  void Push(int layer, Outbox& out);
  // Tells the coordinator the rows of the layers' factors.
  void ReportRows(Outbox& out);
  // Runs `task` as soon as the worker has the turn at its device; at once if it
  // has a device of its own.
  void WithTurn(std::function<void()> task);
  // Notes at a shared device that the worker waits, or has pushed a layer.
  void UpdateTurn(bool waits);
  // Runs `task` after a drawn time of computation, in this life.
  void Compute(std::function<void()> task);
  void OnStepDone();
  void UpdateParameters();
  // Tells the laws the result of a round.
  void Tell(const LayerDone& done, bool is_first);

  SimulatedWorld* const world_;
  SimulatedProcess* const process_;
  StepLedger ledger_;                 // Decides which call may come next.
  Caller caller_;                     // Brings the calls to the machine.
  WorkerMachine* machine_ = nullptr;  // The member owns it.
  std::vector<Layer> layers_;
  int rank_ = -1;
  int64_t step_ = kInitialRound;           // See step().
  int64_t gathered_step_ = kInitialRound;  // Last step with a gathering.
  double slowness_ = 1;                    // Factor of all computing times.
  bool leaves_early_ = false;              // Argument of LeaveSoon.
  // First step that the worker does not begin, since LeaveSoon was called.
  std::optional<int64_t> leaves_before_;
  bool has_left_ = false;

  struct Turns;
  std::unique_ptr<Turns> turns_;  // Null: the worker has its own device.
};

}  // namespace nereus
