#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "common/network/event_queue.h"
#include "common/plan/compute_times.h"
#include "common/protocol/job.h"
#include "common/protocol/outbox.h"
#include "worker/machine/worker_machine.h"

namespace nereus {

// Work of all trainers of a simulation. Constant.
struct TrainerProgram {
  // The job, with its model and plan.
  JobPtr job;
  // Computing time of each layer.
  std::vector<LayerTime> times;
  // True if forward passes wait for each layer; false if the trainers wait for
  // all layers at the end of a step.
  bool waits_in_forward = true;
  // Number of steps of the simulation.
  int64_t steps = 0;

  // Bytes per second between the device and host memory. Infinite: copies take
  // no time.
  double copy_rate = 0.0;
};

// Delays of one trainer before its forward. The device does nothing during a
// delay.
struct TrainerDelays {
  // Delay in each step.
  absl::Duration always;
  // Further delay in each step s with s modulo workers = rank of the trainer.
  absl::Duration in_turn;
};

// Simulated trainer of one worker, on virtual time, with the production machine
// of a worker. In each step it computes forward and backward, and pushes each
// layer. The next step begins after backward, and its forward waits for each
// layer; without TrainerProgram::waits_in_forward, the next step begins when
// all layers are done. Payloads are sizes only.
//
// The device computes one thing at a time. For layers by factors (kFactor), it
// also makes the products of factors, after the work that is queued before
// them. Half of a layer's backward is the product for the worker's own
// gradient, with K rows. So the products for P workers add P - 1 times that
// half.
//
// Copies between the device and host memory go one at a time, whatever their
// direction, while the device computes. A frame is copied out before it is
// sent, and copied in before its layer is done. On a ring, a sum is not copied
// in and a mean is not copied out, because they are in host memory. With
// Overlap::kNone, all gradients are copied before the first frame is sent. A
// layer's result is then copied when all of it has arrived, while other layers
// are still on their way. Poseidon's release copies in this way without
// wait-free backpropagation.
class SimulatedTrainer {
 public:
  // Receiver of the trainer's actions.
  class Driver {
   public:
    virtual ~Driver() = default;
    // Sends a frame to one peer.
    virtual void Send(PeerId from, PeerId to, const Frame& frame) = 0;
    // Notes that the backward of a step is over.
    virtual void OnBackwardDone(PeerId worker, int64_t step) = 0;
    // Notes that the trainer has the result of every layer of a step.
    virtual void OnStepDone(PeerId worker, int64_t step) = 0;
  };

  // The pointers are not owned and must outlive this.
  SimulatedTrainer(const TrainerProgram* program, int rank,
                   const TrainerDelays& delays, EventQueue* events,
                   Driver* driver);

  // Begins the first step at once.
  void Begin() { BeginStep(); }

  // Receives a frame. REQUIRES: the machine expects it now.
  void Deliver(const Frame& frame);

  WorkerMachine& machine() { return machine_; }
  // Time for which the device has computed for a step. REQUIRES: `step` is the
  // last step that began, or the one before.
  absl::Duration compute_time(int64_t step) const {
    return progress_[step % 2].compute_time;
  }

 private:
  // A frame that is being copied out of the device.
  struct Outgoing {
    // Receiver, if `workers` is null.
    PeerId to;
    // Ranks of the receivers, if there are several.
    RankList workers;
    Frame frame;
  };

  // Progress of one step.
  struct Progress {
    // Layers that are not done.
    int layers_left = 0;
    // Time for which the device computes.
    absl::Duration compute_time;
  };

  int layers() const { return static_cast<int>(program_->times.size()); }
  bool by_factors(int layer) const {
    return program_->job->routes[layer].scheme == Scheme::kFactor;
  }
  // True if a layer is sent as soon as its backward is done.
  bool streams() const {
    return program_->job->options.overlap != Overlap::kNone;
  }
  // Return the time of a copy: of bytes, of all gradients or their factors to
  // host memory, and of a layer's result or factors to the device.
  absl::Duration CopyTime(int64_t bytes) const;
  absl::Duration CopyOutTime() const;
  absl::Duration CopyInTime(int layer) const;
  // Occupies the device for `time`, behind its other work. Returns the end.
  absl::Time Compute(int64_t step, absl::Duration time);
  // Occupies the copier for `time`, behind its other work. Returns the end.
  absl::Time Copy(absl::Duration time);

  // Phases of a step.
  void BeginStep();
  // Computes forward of `layer` and the layers behind it, as far as they have
  // the results of the last step.
  void Forward(int layer);
  void Backward(int layer);
  void OnBackward(int layer);
  // Begins the next step, if it need not wait for the results of this one.
  void OnPushedAll();
  void Push(int layer);
  // Carries out the actions of the machine.
  void Execute();
  void CopyOut(Outgoing outgoing);
  void Emit(const Outgoing& outgoing);
  // Handle a layer's result, step by step: OnReceived when it is in host
  // memory, OnDevice when it is on the device, OnLayerDone when the layer is
  // done.
  void OnReceived(int layer, int64_t step);
  void OnDevice(int layer, int64_t step);
  void OnLayerDone(int layer, int64_t step);

  const TrainerProgram* const program_;
  const int rank_;
  const TrainerDelays delays_;
  EventQueue* const events_;
  Driver* const driver_;
  WorkerMachine machine_;
  // Last step that began.
  int64_t step_ = kInitialRound;
  // Last two steps, by step % 2.
  std::array<Progress, 2> progress_;
  // Last step that is done, by layer.
  std::vector<int64_t> done_step_;
  // Layer that forward waits for; -1: none.
  int awaited_layer_ = -1;
  // End of the device's work.
  absl::Time device_free_at_;
  // End of the copier's work.
  absl::Time copier_free_at_;
  // Arrival of the last frame, or the end of its copy to the device if it is
  // copied by itself.
  absl::Time received_at_;
  // Frames that are being copied out.
  std::deque<Outgoing> outgoing_;
  Outbox outbox_;
};

}  // namespace nereus
