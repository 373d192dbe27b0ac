#include "common/transport/machine_driver.h"

#include <utility>
#include <variant>

#include "common/base/crc32c.h"
#include "common/base/mutex.h"
#include "common/compute/arithmetic.h"

namespace nereus {
namespace {

// Poll returns on every event; this only bounds how long a lost wake-up could
// last.
constexpr absl::Duration kPollTimeout = absl::Seconds(1);

void Count(std::atomic<int64_t>& counter, const Frame& frame) {
  counter.store(counter.load(std::memory_order_relaxed) + kFrameHeaderBytes +
                    frame.payload.bytes(),
                std::memory_order_relaxed);
}

}  // namespace

MachineDriver::MachineDriver(PeerId self, JobPtr job, Transport* transport,
                             Machine* machine, Events events)
    : self_(self),
      job_(std::move(job)),
      transport_(transport),
      machine_(machine),
      events_(std::move(events)),
      bytes_sent_(job_->layers.size()),
      bytes_received_(job_->layers.size()),
      thread_([this] { Run(); }) {}

MachineDriver::~MachineDriver() {
  stopping_ = true;
  transport_->Wake();
  thread_.join();
}

void MachineDriver::Post(Event event) {
  {
    MutexLock lock(&mu_);
    posted_.push_back(std::move(event));
  }
  transport_->Wake();
}

void MachineDriver::Run() {
  while (!stopping_) {
    transport_->Poll(kPollTimeout, *this);
    RunPosted();
  }
}

void MachineDriver::RunPosted() {
  {
    MutexLock lock(&mu_);
    running_.swap(posted_);
  }
  for (Event& event : running_) {
    event(outbox_);
    Execute();
  }
  running_.clear();
}

absl::StatusOr<Landing> MachineDriver::OnHeader(PeerId from,
                                                const FrameHeader& header) {
  return machine_->OnHeader(from, header);
}

void MachineDriver::OnFrame(PeerId from, const Frame& frame) {
  Count(bytes_received_[frame.header.layer], frame);
  machine_->OnFrame(from, frame, outbox_);
  Execute();
}

void MachineDriver::OnConnected(PeerId peer) { events_.connected(peer); }

void MachineDriver::OnDisconnected(PeerId peer, const absl::Status& reason) {
  events_.disconnected(peer, reason);
}

void MachineDriver::Execute() {
  for (const Action& action : outbox_.actions()) {
    if (ExecuteArithmetic(action)) continue;
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      Send(send->to, send->frame);
    } else if (const auto* broadcast = std::get_if<BroadcastFrame>(&action)) {
      Broadcast(broadcast->frame);
    } else if (const auto* done = std::get_if<LayerDone>(&action)) {
      events_.layer_done(*done);
    }
  }
  outbox_.Clear();
}

void MachineDriver::Send(PeerId to, const Frame& frame) {
  Count(bytes_sent_[frame.header.layer], frame);
  transport_->Send(to, frame);
}

void MachineDriver::Broadcast(const Frame& frame) {
  // One checksum serves all receivers.
  Frame checked = frame;
  checked.header.payload_crc =
      Crc32c(frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
  for (int rank = 0; rank < job_->workers; ++rank) {
    const PeerId to = PeerId::Worker(rank);
    if (to != self_) Send(to, checked);
  }
}

}  // namespace nereus
