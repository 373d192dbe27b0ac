#ifndef NEREUS_COMMON_SIMULATION_SIMULATED_TRAINER_H_
#define NEREUS_COMMON_SIMULATION_SIMULATED_TRAINER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "common/simulation/event_queue.h"
#include "worker/worker_machine.h"

namespace nereus {

// What a trainer sends while it computes.
enum class Overlap {
  kWaitFree,  // "wfbp": a layer's gradient, as soon as it exists.
  kNone,      // "none": all of them, once the whole backward is over.
};

// What all trainers of a simulation do. Constant.
struct TrainerProgram {
  JobPtr job;
  std::vector<LayerTime> times;  // By layer.
  Overlap overlap = Overlap::kWaitFree;

  // Bytes/s between the device and host memory. Infinite: copies cost nothing.
  double copy_rate = 0.0;
};

// One worker's trainer on virtual time, with the production machine: computes
// forward and backward, layer by layer; pushes; and begins the next step when
// all layers are done. Payloads are sizes only.
//
// The device computes one thing at a time. A product of factors (kFactor) is
// made there too, behind what is under way. Of a layer's backward half is the
// product for its own gradient, K rows; so the product over P workers' rows
// adds P - 1 times that.
//
// Copies between the device and host memory go one after the other, either way,
// while the device computes. With kWaitFree each frame is copied on its way:
// out before it is sent, in before its layer is done. With kNone all gradients
// are copied before the first frame is sent, and each layer's result once all
// of it is in, while others are on their way: what Poseidon's release does
// without wait-free backpropagation, which pushes at the end of an iteration,
// then gets layer by layer.
class SimulatedTrainer {
 public:
  // What carries out the trainer's actions.
  class Driver {
   public:
    virtual ~Driver() = default;
    virtual void Send(PeerId from, PeerId to, const Frame& frame) = 0;
    virtual void Broadcast(PeerId from, const Frame& frame) = 0;
    virtual void OnStepDone(PeerId worker) = 0;
  };

  // None is owned; all must outlive this.
  SimulatedTrainer(const TrainerProgram* program, int rank, EventQueue* events,
                   Driver* driver);

  // Begins the next step, at once.
  void BeginStep();

  // A frame has come. REQUIRES: it is right, and not too early.
  void Deliver(const Frame& frame);

  WorkerMachine& machine() { return machine_; }
  int64_t step() const { return step_; }  // The last one that began.
  // How long the device computed in that step.
  absl::Duration compute_time() const { return compute_time_; }

 private:
  struct Outgoing {
    std::optional<PeerId> to;  // None: everybody.
    Frame frame;
  };

  int layers() const { return static_cast<int>(program_->times.size()); }
  bool by_factors(int layer) const {
    return program_->job->routes[layer].scheme == Scheme::kFactor;
  }
  bool streams() const { return program_->overlap == Overlap::kWaitFree; }
  absl::Duration CopyTime(int64_t bytes) const;
  // The device's next free slot of this length; when it is over.
  absl::Time Compute(absl::Duration time);
  // The same of what copies.
  absl::Time Copy(absl::Duration time);

  void Backward(int layer);
  void OnBackward(int layer);
  void Push(int layer);
  void Execute();
  void CopyOut(Outgoing outgoing);
  void Emit(const Outgoing& outgoing);
  absl::Duration CopyOutTime() const;  // Of all layers together.
  absl::Duration CopyInTime(int layer) const;
  // All of a layer's round is in host memory, and then on the device.
  void OnReceived(int layer);
  void OnDevice(int layer);
  void OnLayerDone();

  const TrainerProgram* const program_;
  const int rank_;
  EventQueue* const events_;
  Driver* const driver_;
  WorkerMachine machine_;

  int64_t step_ = kInitialRound;
  int layers_left_ = 0;  // Not yet done in this step.
  absl::Duration compute_time_;
  absl::Time device_free_at_;
  absl::Time copier_free_at_;
  absl::Time received_at_;         // The last frame, copies of it included.
  std::deque<Outgoing> outgoing_;  // Being copied.
  Outbox outbox_;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_SIMULATION_SIMULATED_TRAINER_H_
