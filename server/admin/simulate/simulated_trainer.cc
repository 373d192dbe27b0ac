#include "server/admin/simulate/simulated_trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "common/base/logging.h"
#include "common/protocol/action_visitor.h"

// Order of one step, as it is simulated:
//
//   BeginStep -> Forward(0 ...) -> Backward(last ... 0) -> OnBackward -> Push
//   machine's actions: CopyOut -> Emit                   (frames leave)
//   Deliver -> machine -> OnReceived -> OnDevice -> OnLayerDone -> next step
//
// Compute and Copy reserve time of the device and of the copier. Each returns
// the time at which the work is over, and an event goes on at that time.

namespace nereus {
namespace {

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

int64_t FactorBytes(const LayerSpec& layer) {
  return BytesOf(layer.rows * (layer.m + layer.n));
}

std::vector<LayerMemory> SizesOf(const Job& job) {
  std::vector<LayerMemory> memory;
  for (const LayerSpec& layer : job.model()) {
    memory.push_back({Buffer::SizeOnly(BytesOf(layer.parameters)), Buffer()});
  }
  return memory;
}

}  // namespace

SimulatedTrainer::SimulatedTrainer(const TrainerProgram* program, int rank,
                                   const TrainerDelays& delays,
                                   EventQueue* events, Driver* driver)
    : program_(program),
      rank_(rank),
      delays_(delays),
      events_(events),
      driver_(driver),
      machine_(program->job, rank, SizesOf(*program->job)),
      done_step_(program->job->model().size(), kInitialRound) {}

// Compute.

void SimulatedTrainer::BeginStep() {
  ++step_;
  NEREUS_CHECK(machine_.BeginStep(step_, outbox_)) << "step " << step_;
  progress_[step_ % 2] = {layers(), absl::ZeroDuration()};
  device_free_at_ = std::max(device_free_at_, events_->now()) + delays_.always;
  if (step_ % program_->job->worker_count() == rank_) {
    device_free_at_ += delays_.in_turn;
  }
  if (program_->waits_in_forward) return Forward(0);
  absl::Duration forward;
  for (const LayerTime& time : program_->times) forward += time.forward;
  events_->At(Compute(step_, forward), [this] { Backward(layers() - 1); });
}

// If the layer does not have the result of the last step yet, waits for it:
// OnLayerDone calls this again.
void SimulatedTrainer::Forward(int layer) {
  if (layer == layers()) return Backward(layer - 1);
  if (done_step_[layer] < step_ - 1) {
    awaited_layer_ = layer;
    machine_.OnHurry(layer, outbox_);
    return Execute();
  }
  events_->At(Compute(step_, program_->times[layer].forward),
              [this, layer] { Forward(layer + 1); });
}

// The device does one piece of work at a time: a piece begins when the one
// before it is over.
absl::Time SimulatedTrainer::Compute(int64_t step, absl::Duration time) {
  progress_[step % 2].compute_time += time;
  device_free_at_ = std::max(device_free_at_, events_->now()) + time;
  return device_free_at_;
}

void SimulatedTrainer::Backward(int layer) {
  events_->At(Compute(step_, program_->times[layer].backward),
              [this, layer] { OnBackward(layer); });
}

void SimulatedTrainer::OnBackward(int layer) {
  if (streams()) Push(layer);
  if (layer > 0) return Backward(layer - 1);
  driver_->OnBackwardDone(PeerId::Worker(rank_), step_);
  if (streams()) return OnPushedAll();
  events_->At(Copy(CopyOutTime()), [this] {
    for (int each = layers() - 1; each >= 0; --each) Push(each);
    OnPushedAll();
  });
}

void SimulatedTrainer::OnPushedAll() {
  const bool goes_on = program_->waits_in_forward;
  if (goes_on && step_ + 1 < program_->steps) BeginStep();
}

// Exchange with the machine.

void SimulatedTrainer::Push(int layer) {
  const LayerSpec& spec = program_->job->layers[layer];
  absl::Status status;
  if (by_factors(layer)) {
    status =
        machine_.OnPushFactors(layer, step_,
                               {Buffer::SizeOnly(BytesOf(spec.rows * spec.m)),
                                Buffer::SizeOnly(BytesOf(spec.rows * spec.n)),
                                Buffer::SizeOnly(BytesOf(spec.parameters))},
                               outbox_);
  } else {
    status = machine_.OnPush(
        layer, step_, Buffer::SizeOnly(BytesOf(spec.parameters)), outbox_);
  }
  NEREUS_CHECK(status.ok()) << status;
  Execute();
}

// A frame arrives in host memory. With overlap its values are copied to the
// device at once; the exception is below.
void SimulatedTrainer::Deliver(const Frame& frame) {
  const auto landing = machine_.OnHeader(frame.header.sender, frame.header);
  NEREUS_CHECK(landing.ok()) << landing.status();
  NEREUS_CHECK(landing->kind != Landing::Kind::kWait)
      << DescribeFrame(frame.header);
  if (landing->kind == Landing::Kind::kDiscard) return;
  received_at_ = events_->now();
  // A sum on a ring is added up in host memory and sent on from there.
  if (streams() && step_ != kInitialRound &&
      frame.header.kind != FrameKind::kSum) {
    received_at_ = Copy(CopyTime(frame.payload.bytes()));
  }
  machine_.OnFrame(frame.header.sender, frame, outbox_);
  Execute();
}

void SimulatedTrainer::Execute() {
  const ActionVisitor carry_out{
      [&](const SendFrame& send) {
        CopyOut({send.to, nullptr, send.frame});
      },
      [&](const BroadcastFrame& all) {
        CopyOut({PeerId(), all.to, all.frame});
      },
      [&](const LayerDone& done) { OnReceived(done.layer, done.round); },
      // Ignored: buffers have no bytes here, and there is one epoch.
      [](const CheckingAction auto&) {},
      [](const ArithmeticAction auto&) {},
      [](const OneOf<ChecksumValues, PartDone, ProbeAnswered, SaveCheckpoint,
                     LoadCheckpoint, SendMessage, SendHeartbeat, FollowEpoch,
                     EndMembership> auto&) {},
  };
  for (const Action& action : outbox_.actions()) std::visit(carry_out, action);
  outbox_.Clear();
}

// Copies between the device and host memory.

absl::Duration SimulatedTrainer::CopyTime(int64_t bytes) const {
  if (std::isinf(program_->copy_rate)) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(bytes) / program_->copy_rate);
}

absl::Duration SimulatedTrainer::CopyOutTime() const {
  absl::Duration time;
  for (int i = 0; i < layers(); ++i) {
    const LayerSpec& layer = program_->job->layers[i];
    time += CopyTime(by_factors(i) ? FactorBytes(layer)
                                   : BytesOf(layer.parameters));
  }
  return time;
}

// A layer by factors needs the factors of every other worker. A layer by
// another scheme needs one result.
absl::Duration SimulatedTrainer::CopyInTime(int layer) const {
  const LayerSpec& spec = program_->job->layers[layer];
  const int peers = program_->job->worker_count() - 1;
  return CopyTime(by_factors(layer) ? FactorBytes(spec) * peers
                                    : BytesOf(spec.parameters));
}

absl::Time SimulatedTrainer::Copy(absl::Duration time) {
  copier_free_at_ = std::max(copier_free_at_, events_->now()) + time;
  return copier_free_at_;
}

void SimulatedTrainer::CopyOut(Outgoing outgoing) {
  const absl::Duration time = CopyTime(outgoing.frame.payload.bytes());
  // A mean on a ring is in host memory already.
  const bool copied = outgoing.frame.header.kind == FrameKind::kMean;
  if (!streams() || copied || time == absl::ZeroDuration()) {
    Emit(outgoing);
    return;
  }
  outgoing_.push_back(std::move(outgoing));
  events_->At(Copy(time), [this] {
    Emit(outgoing_.front());
    outgoing_.pop_front();
  });
}

void SimulatedTrainer::Emit(const Outgoing& outgoing) {
  const PeerId self = PeerId::Worker(rank_);
  if (outgoing.workers == nullptr) {
    driver_->Send(self, outgoing.to, outgoing.frame);
    return;
  }
  for (const int32_t rank : *outgoing.workers) {
    driver_->Send(self, PeerId::Worker(rank), outgoing.frame);
  }
}

// End of a step.

void SimulatedTrainer::OnReceived(int layer, int64_t step) {
  if (step == kInitialRound) return;  // No step waits for initial values.
  const absl::Time copied_at = streams()
                                   ? std::max(received_at_, events_->now())
                                   : Copy(CopyInTime(layer));
  events_->At(copied_at, [this, layer, step] { OnDevice(layer, step); });
}

// Products with the factors of other workers need the device.
void SimulatedTrainer::OnDevice(int layer, int64_t step) {
  const Job& job = *program_->job;
  if (by_factors(layer) && job.worker_count() > 1) {
    const Lineup& lineup = job.LineupOf(step);
    const absl::Duration product =
        program_->times[layer].backward / 2 *
        ProductsOf(job.layers[layer], job.worker_count(),
                   std::ssize(lineup.at(lineup.HostOf(rank_))));
    events_->At(Compute(step, product),
                [this, layer, step] { OnLayerDone(layer, step); });
  } else {
    OnLayerDone(layer, step);
  }
}

void SimulatedTrainer::OnLayerDone(int layer, int64_t step) {
  done_step_[layer] = step;
  if (--progress_[step % 2].layers_left == 0) {
    driver_->OnStepDone(PeerId::Worker(rank_), step);
    const bool goes_on = !program_->waits_in_forward;
    if (goes_on && step + 1 < program_->steps) BeginStep();
  }
  if (awaited_layer_ != layer) return;
  awaited_layer_ = -1;
  Forward(layer);
}

}  // namespace nereus
