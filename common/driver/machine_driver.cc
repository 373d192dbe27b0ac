#include "common/driver/machine_driver.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/driver/arithmetic.h"
#include "common/driver/wire_values.h"

namespace nereus {
namespace {

// Poll returns on every event; this only bounds how long a lost wake-up could
// last.
constexpr absl::Duration kPollTimeout = absl::Seconds(1);

bool WorkersOwnSome(const Job& job) {
  for (size_t layer = 0; layer < job.layers.size(); ++layer) {
    if (job.WorkersOwn(static_cast<int>(layer))) return true;
  }
  return false;
}

bool ShareShard(const Job& job, int server, int other) {
  return std::any_of(job.shard_servers.begin(), job.shard_servers.end(),
                     [&](const auto& servers) {
                       return std::minmax(servers.primary, servers.backup) ==
                              std::minmax(server, other);
                     });
}

// What is sent of a frame: the payload, or what it has arrived as besides, if
// it is sent in that form.
Buffer PayloadOf(const Frame& frame) {
  const bool is_encoded = frame.payload.bytes() == frame.header.payload_bytes;
  if (frame.header.wire != WireType::kBfloat16 || is_encoded) {
    return frame.payload;
  }
  Buffer narrow = frame.payload.AsBfloat16();
  return narrow.bytes() > 0 ? narrow : frame.payload;
}

// What an action reads of what callers have pushed, which may be on its way.
auto SourcesOf(const SendFrame& send) {
  return std::array{PayloadOf(send.frame)};
}
auto SourcesOf(const BroadcastFrame& broadcast) {
  return std::array{PayloadOf(broadcast.frame)};
}
auto SourcesOf(const CopyValues& copy) { return std::array{copy.source}; }
auto SourcesOf(const AddValues& add) { return std::array{add.addend}; }
auto SourcesOf(const CheckValues& check) { return std::array{check.values}; }
auto SourcesOf(const ChecksumValues& check) { return std::array{check.values}; }
auto SourcesOf(const ScaleValues& scale) { return std::array{scale.values}; }
auto SourcesOf(const SplitGradient& split) {
  return std::array{split.gradient, split.parameters};
}
auto SourcesOf(const UpdateParameters& update) {
  return std::array{update.gradient};
}
auto SourcesOf(const MultiplyFactors& multiply) {
  return std::array{multiply.output_gradient, multiply.input};
}

}  // namespace

MachineDriver::MachineDriver(Transport* transport, Member* member, int layers,
                             absl::Duration connect_timeout, Events events)
    : transport_(transport),
      member_(member),
      connect_timeout_(connect_timeout),
      events_(std::move(events)),
      bytes_sent_(layers),
      bytes_received_(layers),
      turn_([this] { transport_->Wake(); }),
      thread_([this] { Run(); }) {}

MachineDriver::~MachineDriver() { Stop(); }

void MachineDriver::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  turn_.Stop();
  thread_.join();
}

void MachineDriver::Post(Event event) {
  {
    MutexLock lock(&mu_);
    posted_.push_back(std::move(event));
  }
  if (turn_.taken()) transport_->Wake();
}

Pulse::Beat MachineDriver::OnHeartbeatDue(Event answer) {
  Pulse::Beat beat;
  {
    MutexLock lock(&mu_);
    beat = pulse_.OnDue();
  }
  if (!beat.asks) return beat;
  Post([this, answer = std::move(answer)](Outbox& out) {
    {
      MutexLock lock(&mu_);
      pulse_.Answer();
    }
    answer(out);
  });
  return beat;
}

void MachineDriver::CarryOutBusy(absl::FunctionRef<void()> work) {
  const auto set_busy = [this](bool is_busy) {
    MutexLock lock(&mu_);
    pulse_.SetBusy(is_busy);
  };
  set_busy(true);
  work();
  set_busy(false);
}

void MachineDriver::Run() {
  while (turn_.OwnerTakes()) {
    transport_->MoveToThisThread();
    RunPosted();
    while (!turn_.wanted()) {
      transport_->Poll(kPollTimeout, *this);
      RunPosted();
    }
    turn_.OwnerGives();
  }
}

void MachineDriver::DriveUntil(absl::FunctionRef<bool()> done,
                               absl::Time deadline) {
  if (done() || !turn_.GuestTakes()) return;
  transport_->MoveToThisThread();
  RunPosted();
  while (!done() && !stopping_) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) break;
    transport_->Poll(std::min(left, kPollTimeout), *this);
    RunPosted();
  }
  turn_.GuestGives();
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
  absl::StatusOr<Landing> landing = member_->OnHeader(from, header);
  const bool placed = landing.ok() && landing->kind == Landing::Kind::kPlace;
  if (placed) landing->place.AwaitUnread();
  return placed && IsEncoded(header) ? Landing::Scratch() : landing;
}

void MachineDriver::OnFrame(PeerId from, const Frame& frame) {
  Count(bytes_received_, frame);
  if (!IsEncoded(frame.header)) {
    member_->OnFrame(from, frame, outbox_);
  } else if (!Decode(from, frame)) {
    return;
  }
  Execute();
  encoded_ = nullptr;
  looks_ = nullptr;
}

bool MachineDriver::Decode(PeerId from, const Frame& frame) {
  const auto landing = member_->OnHeader(from, frame.header);
  if (!landing.ok()) return false;
  if (landing->kind == Landing::Kind::kPlace) {
    DecodePayload(frame.header, frame.payload, landing->place);
    member_->OnFrame(from, {frame.header, landing->place}, outbox_);
    return true;
  }
  if (landing->kind != Landing::Kind::kScratch) return false;
  encoded_ = &frame;
  member_->OnFrame(from,
                   {frame.header, decoded_.Slice(0, FloatBytes(frame.header))},
                   outbox_);
  if (!IsOnlyAdded()) {
    encoded_ = nullptr;
    DecodePayload(frame.header, frame.payload,
                  decoded_.Slice(0, FloatBytes(frame.header)));
  }
  return true;
}

bool MachineDriver::IsDecoded(const Buffer& values) const {
  return encoded_ != nullptr && values.data() == decoded_.data() &&
         values.bytes() == FloatBytes(encoded_->header);
}

bool MachineDriver::IsOnlyAdded() const {
  int adds = 0;
  int checks = 0;
  for (const Action& action : outbox_.actions()) {
    const auto* add = std::get_if<AddValues>(&action);
    const auto* check = std::get_if<CheckValues>(&action);
    if (add != nullptr && add->factor == 1.0f && IsDecoded(add->addend)) ++adds;
    // Not one that comes after the sum.
    if (check != nullptr && adds == 0 && IsDecoded(check->values)) ++checks;
  }
  return adds == 1 && checks <= 1 && decoded_.references() == 1 + adds + checks;
}

void MachineDriver::AddEncoded(const AddValues& add) {
  const int64_t index = AddPayload(encoded_->header, encoded_->payload,
                                   /*checks=*/looks_ != nullptr, add.sum);
  if (index < 0) return;
  DecodePayload(encoded_->header, encoded_->payload, looks_->values);
  Fail(*looks_, index);
}

void MachineDriver::OnConnected(PeerId peer) {
  NEREUS_LOG(Debug) << start_->job->NameOf(peer) << " is connected";
}

void MachineDriver::OnDisconnected(PeerId peer, const absl::Status& reason) {
  // Not yet a failure: the coordinator knows whether the peer has left.
  const std::string text(reason.ok() ? "closed by the peer" : reason.message());
  NEREUS_LOG(Info) << "the connection to " << start_->job->NameOf(peer)
                   << " is lost: " << text;
  member_->OnLostPeer(peer, text, outbox_);
  Execute();
}

void MachineDriver::Execute() {
  bool entered = false;
  for (const Action& action : outbox_.actions()) {
    if (const auto* message = std::get_if<SendMessage>(&action)) {
      events_.send_message(message->message);
    } else if (const auto* end = std::get_if<EndMembership>(&action)) {
      events_.ended(end->outcome);
    } else if (!failed_) {
      CarryOut(action);
      entered = entered || std::holds_alternative<FollowEpoch>(action);
    }
  }
  outbox_.Clear();
  if (entered) events_.entered(start_);
}

bool MachineDriver::AwaitSources(const Action& action) {
  const absl::Status there = std::visit(
      [this](const auto& typed) -> absl::Status {
        if constexpr (requires { SourcesOf(typed); }) {
          for (const Buffer& source : SourcesOf(typed)) {
            if (source.IsThere()) continue;
            transport_->Flush();  // What was there before goes ahead.
            NEREUS_RETURN_IF_ERROR(source.Await());
          }
        }
        return absl::OkStatus();
      },
      action);
  if (!there.ok()) FailFor(there);
  return there.ok();
}

void MachineDriver::FailFor(const absl::Status& reason) {
  Outbox last;
  member_->OnFailure(std::string(reason.message()), last);
  End(last);
}

void MachineDriver::End(const Outbox& last) {
  failed_ = true;
  SendMessages(last);
}

bool MachineDriver::IsSplitElsewhere(const SplitGradient& split) {
  if (events_.splitter == nullptr) return false;
  GradientSplitter* const splitter = events_.splitter(split.layer);
  if (splitter == nullptr) return false;
  transport_->Flush();  // What was there before goes ahead.
  const absl::Status done = splitter->Split(split);
  if (!done.ok()) FailFor(done);
  return true;
}

void MachineDriver::CarryOut(const Action& action) {
  const auto* split = std::get_if<SplitGradient>(&action);
  if (split != nullptr && IsSplitElsewhere(*split)) return;
  if (!AwaitSources(action)) return;
  if (const auto* update = std::get_if<UpdateParameters>(&action)) {
    update->updated.AwaitUnread();
  }
  const auto* add = std::get_if<AddValues>(&action);
  if (add != nullptr && IsDecoded(add->addend)) return AddEncoded(*add);
  const auto* factors = std::get_if<MultiplyFactors>(&action);
  if (factors != nullptr && events_.multiply != nullptr) {
    const absl::Status multiplied = events_.multiply(*factors);
    if (!multiplied.ok()) FailFor(multiplied);
    return;
  }
  if (factors != nullptr) {
    return CarryOutBusy([&] { ExecuteArithmetic(action); });
  }
  if (ExecuteArithmetic(action)) return;
  if (const auto* send = std::get_if<SendFrame>(&action)) {
    Send(send->to, send->frame);
  } else if (const auto* broadcast = std::get_if<BroadcastFrame>(&action)) {
    Broadcast(broadcast->frame);
  } else if (const auto* check = std::get_if<CheckValues>(&action)) {
    Check(*check);
  } else if (const auto* sum = std::get_if<ChecksumValues>(&action)) {
    Sum(*sum);
  } else if (const auto* done = std::get_if<LayerDone>(&action)) {
    events_.layer_done(*done);
  } else if (const auto* probed = std::get_if<ProbeAnswered>(&action)) {
    if (events_.probed != nullptr) events_.probed(*probed);
  } else if (const auto* follow = std::get_if<FollowEpoch>(&action)) {
    Follow(follow->start);
  } else if (const auto* save = std::get_if<SaveCheckpoint>(&action)) {
    events_.save(*save);
  } else if (const auto* load = std::get_if<LoadCheckpoint>(&action)) {
    CarryOutBusy([&] { events_.load(*load); });
  }
}

void MachineDriver::Check(const CheckValues& check) {
  if (IsDecoded(check.values)) {
    looks_ = &check;
  } else if (const int64_t index = FindNotFinite(check); index >= 0) {
    Fail(check, index);
  }
}

void MachineDriver::Sum(const ChecksumValues& check) {
  const uint32_t crc =
      Crc32c(check.values.data(), static_cast<size_t>(check.values.bytes()));
  Outbox more;
  member_->OnChecksum(check, crc, more);
  SendMessages(more);
}

void MachineDriver::SendMessages(const Outbox& out) {
  for (const Action& message : out.actions()) {
    events_.send_message(std::get<SendMessage>(message).message);
  }
}

void MachineDriver::Fail(const CheckValues& check, int64_t index) {
  Outbox last;
  member_->OnNotFinite(check, index, last);
  End(last);
}

bool MachineDriver::Dials(const EpochStart& start, PeerId peer) const {
  // Of two servers, one keeps a copy of the other's shard.
  if (start.self.role == Role::kShard) {
    return peer.role == Role::kShard && start.self.rank > peer.rank &&
           ShareShard(*start.job, start.self.rank, peer.rank);
  }
  if (peer.role == Role::kShard) return true;
  // Workers have nothing to say to each other but for layers that they own. Of
  // two, the one with the higher rank connects.
  return start.self.rank > peer.rank && WorkersOwnSome(*start.job);
}

void MachineDriver::Follow(std::shared_ptr<const EpochStart> start) {
  const std::shared_ptr<const EpochStart> before =
      std::exchange(start_, std::move(start));
  Roster roster;
  for (const EpochMember& each : start_->epoch_members)
    roster[each.id] = each.incarnation;
  if (before != nullptr) {
    for (const EpochMember& each : before->epoch_members) {
      const auto found = roster.find(each.id);
      const bool stays =
          found != roster.end() && found->second == each.incarnation;
      if (!stays) transport_->Disconnect(each.id);
    }
  }
  for (const auto& [first, second] : start_->broken_links) {
    if (first == start_->self) transport_->Disconnect(second);
    if (second == start_->self) transport_->Disconnect(first);
  }
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.build = kVersion;
  hello.job = start_->job->id;
  hello.epoch = start_->job->epoch;
  hello.model_signature = ModelSignature(start_->job->layers);
  hello.self = start_->self;
  hello.incarnation = roster[start_->self];
  transport_->SetRoster(hello, std::move(roster));
  const absl::Time deadline = absl::Now() + connect_timeout_;
  for (const EpochMember& each : start_->epoch_members) {
    if (each.id == start_->self || !Dials(*start_, each.id)) continue;
    transport_->Connect(each.id, each.data_address, deadline);
  }
}

void MachineDriver::Count(Counters& counters, const Frame& frame) {
  const bool counts = frame.header.layer < counters.size() &&
                      frame.header.kind != FrameKind::kProbe;
  if (!counts) return;
  std::atomic<int64_t>& counter = counters[frame.header.layer];
  counter.store(counter.load(std::memory_order_relaxed) + kFrameHeaderBytes +
                    frame.payload.bytes(),
                std::memory_order_relaxed);
}

void MachineDriver::Send(PeerId to, const Frame& frame) {
  Frame ranked = frame;
  ranked.payload = PayloadOf(frame);
  if (ranked.payload.bytes() != frame.header.payload_bytes) {
    EncodePayload(ranked);
  }
  Count(bytes_sent_, ranked);
  ranked.priority = start_->job->SendPriority(frame.header);
  ranked.fused = start_->job->fuses();
  transport_->Send(to, ranked);
}

void MachineDriver::Broadcast(const Frame& frame) {
  // One encoding and one checksum serve all receivers.
  Frame checked = frame;
  EncodePayload(checked);
  checked.header.payload_crc = Crc32c(
      checked.payload.data(), static_cast<size_t>(checked.payload.bytes()));
  for (const EpochWorker& each : start_->job->workers) {
    const PeerId to = PeerId::Worker(each.rank);
    if (to != start_->self) Send(to, checked);
  }
}

}  // namespace nereus
