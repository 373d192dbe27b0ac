#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/network/event_queue.h"
#include "common/plan/compute_times.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "worker/machine/worker_machine.h"

namespace nereus {

// What all trainers of a simulation do. Constant.
struct TrainerProgram {
  JobPtr job;
  std::vector<LayerTime> times;  // By layer.
  int64_t steps = 0;             // To be done.

  // Bytes/s between the device and host memory. Infinite: copies cost nothing.
  double copy_rate = 0.0;
};

// One worker's trainer on virtual time, with the production machine: computes
// forward and backward, layer by layer; pushes; and begins the next step when
// all layers are done, or (Overlap::kDecoupled) at once, and waits in forward
// for each layer alone. Payloads are sizes only.
//
// The device computes one thing at a time. A product of factors (kFactor) is
// made there too, behind what is under way. Of a layer's backward half is the
// product for its own gradient, K rows; so the product over P workers' rows
// adds P - 1 times that.
//
// Copies between the device and host memory go one after the other, either way,
// while the device computes. Each frame is copied on its way:
// out before it is sent, in before its layer is done. With Overlap::kNone all
// gradients are copied before the first frame is sent, and each layer's result
// once all of it is in, while others are on their way: what Poseidon's release
// does without wait-free backpropagation, which pushes at the end of an
// iteration, then gets layer by layer.
class SimulatedTrainer {
 public:
  // What carries out the trainer's actions.
  class Driver {
   public:
    virtual ~Driver() = default;
    virtual void Send(PeerId from, PeerId to, const Frame& frame) = 0;
    virtual void Broadcast(PeerId from, const Frame& frame) = 0;
    // Its backward is over.
    virtual void OnBackwardDone(PeerId worker, int64_t step) = 0;
    // It has the outcome of every layer.
    virtual void OnStepDone(PeerId worker, int64_t step) = 0;
  };

  // None is owned; all must outlive this. `delay`: before each forward, in
  // which the device does nothing; `delay_in_turn`: the same in steps that are
  // `rank` modulo the number of workers.
  SimulatedTrainer(const TrainerProgram* program, int rank,
                   absl::Duration delay, absl::Duration delay_in_turn,
                   EventQueue* events, Driver* driver);

  // Begins the first step, at once.
  void Begin() { BeginStep(); }

  // A frame has come. REQUIRES: it is right, and not too early.
  void Deliver(const Frame& frame);

  WorkerMachine& machine() { return machine_; }
  // How long the device computed for a step, the last or the one before.
  absl::Duration compute_time(int64_t step) const {
    return progress_[step % 2].compute_time;
  }

 private:
  struct Outgoing {
    std::optional<PeerId> to;  // None: everybody.
    Frame frame;
  };

  int layers() const { return static_cast<int>(program_->times.size()); }
  bool by_factors(int layer) const {
    return program_->job->routes[layer].scheme == Scheme::kFactor;
  }
  bool streams() const {
    return program_->job->options.overlap != Overlap::kNone;
  }
  absl::Duration CopyTime(int64_t bytes) const;
  // The device's next free slot of this length; when it is over.
  absl::Time Compute(int64_t step, absl::Duration time);
  // The same of what copies.
  absl::Time Copy(absl::Duration time);

  void BeginStep();
  // From this layer on, as far as the outcomes of the last step are there.
  void Forward(int layer);
  void Backward(int layer);
  void OnBackward(int layer);
  void Push(int layer);
  void Execute();
  void CopyOut(Outgoing outgoing);
  void Emit(const Outgoing& outgoing);
  absl::Duration CopyOutTime() const;  // Of all layers together.
  absl::Duration CopyInTime(int layer) const;
  // All of a layer's round is in host memory, and then on the device.
  void OnReceived(int layer, int64_t step);
  void OnDevice(int layer, int64_t step);
  void OnLayerDone(int layer, int64_t step);

  const TrainerProgram* const program_;
  const int rank_;
  const absl::Duration delay_;
  const absl::Duration delay_in_turn_;
  EventQueue* const events_;
  Driver* const driver_;
  WorkerMachine machine_;

  struct Progress {
    int layers_left = 0;  // Not yet done.
    absl::Duration compute_time;
  };

  int64_t step_ = kInitialRound;      // The last one that began.
  std::array<Progress, 2> progress_;  // By step % 2.
  std::vector<int64_t> done_step_;    // By layer.
  int awaited_layer_ = -1;            // Which forward has to have.
  absl::Time device_free_at_;
  absl::Time copier_free_at_;
  absl::Time received_at_;         // The last frame, copies of it included.
  std::deque<Outgoing> outgoing_;  // Being copied.
  Outbox outbox_;
};

}  // namespace nereus
