#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

class SimulatedProcess;
struct SimulatedWorld;

// The training loop of one worker on virtual time: what a user's program does
// between two calls of the client.
//
//   TryStep --machine lets the step begin--> backward, last layer first,
//      ^                                     a push for each layer
//      |                                            |
//      '-- all layers are done: optimizer, if it is here
//
// The caller's side is that of the real client: StepLedger decides which call
// may come next, and Caller brings it to the machine through the machine's
// lives. Only the threads of the client are missing, and the time to compute a
// layer is drawn. A loop that called WorkerMachine itself would test a protocol
// that no user runs.
class SimulatedWorker {
 public:
  // Neither is owned; both must outlive this.
  SimulatedWorker(SimulatedWorld* world, SimulatedProcess* process);

  // Makes the machine of the worker's next life, with memory of its own.
  std::unique_ptr<Machine> MakeMachine(const EpochStart& start, Outbox& out);
  // Forgets the machine: the process has died.
  void OnDeath() { machine_ = nullptr; }
  // Follows the worker into its next epoch.
  void OnEntered(JobPtr job) { caller_.OnEntered(std::move(job)); }

  // Begins the next step, if more steps are wanted and the machine allows it.
  // REQUIRES: the worker is between two steps, or the last try failed.
  void TryStep();
  // Takes the result of a round from the machine.
  void OnLayerDone(const LayerDone& done);
  // Lets the worker leave once the step under way is done.
  void LeaveSoon();
  // Makes each computation take `factor` times as long.
  void set_slowness(double factor) { slowness_ = factor; }

  // Returns the worker's next heartbeat to the coordinator.
  Heartbeat MakeHeartbeat() const;

  // True if the worker has done `steps` steps, or comes too late for them and
  // waits until the others begin the next step.
  bool HasDone(int64_t steps) const;
  // Returns what each layer of the step under way waits for; empty: nothing.
  std::string DescribeWaits() const;

  // Machine of this life. Null: the worker is not admitted, or dead.
  const WorkerMachine* machine() const { return machine_; }
  bool has_left() const { return has_left_; }
  // Rank of the worker; -1 before it is admitted.
  int rank() const { return rank_; }
  // Step under way, or the next one.
  int64_t step() const { return step_; }
  // The worker's replica of a layer.
  absl::Span<const float> parameters(int layer) const;
  // Mean gradient of a layer's last round, where the worker runs the optimizer.
  absl::Span<const float> mean_gradient(int layer) const;

 private:
  // Memory of one layer.
  struct Layer {
    Buffer parameters;
    Buffer state;     // Optimizer's state, if the worker runs the optimizer.
    Buffer gradient;  // Gradient that the worker pushes.
    Buffer mean;      // Last mean gradient; may be `gradient`'s memory.
    Buffer output_gradient;  // Factors of a fully connected layer; else empty.
    Buffer input;
  };

  // Allocates the layers' memory, with the parameters that the worker brings.
  std::vector<LayerMemory> Allocate(const Job& job);
  // True if the workload gives this layer's gradient as factors.
  bool HasFactors(int layer) const;
  int layer_count() const { return static_cast<int>(layers_.size()); }

  void Leave();
  // Asks the machine to begin `step`. True if it has.
  bool Begin(int64_t step);
  // Computes and pushes the gradient of `layer`, then those of earlier layers.
  void Backward(int layer);
  // Waits for the layers in forward order, with Overlap::kDecoupled.
  void Forward(int layer);
  void Push(int layer, Outbox& out);
  // Runs `task` after a drawn time of computation, in this life.
  void Compute(std::function<void()> task);
  void OnStepDone();
  void UpdateParameters();
  // Reports the result of a round to the laws.
  void Tell(const LayerDone& done, bool is_first);

  SimulatedWorld* const world_;
  SimulatedProcess* const process_;
  StepLedger ledger_;                 // Decides which call may come next.
  Caller caller_;                     // Brings the calls to the machine.
  WorkerMachine* machine_ = nullptr;  // The member's.
  std::vector<Layer> layers_;
  int rank_ = -1;
  int64_t step_ = kInitialRound;  // Step under way, or the next.
  double slowness_ = 1;           // Factor of all computing times.
  bool is_leaving_ = false;       // Leaves once the step is done.
  bool has_left_ = false;
};

}  // namespace nereus
