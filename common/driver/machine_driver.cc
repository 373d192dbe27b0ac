// Read in this order: which thread drives (Run, DriveUntil, RunPosted); how
// frames arrive (OnHeader and below); how actions are carried out (Execute,
// CarryOut, and one function for each kind that takes more than a line).
//
//   driver thread --turn_--> Poll --> OnFrame ---.
//   caller in DriveUntil      '-----> RunPosted --+--> outbox_ --> Execute
//
// Only the thread that has the turn runs events and carries out actions. So the
// fields that the header lists as "Used by the driving thread only" need no
// lock.

#include "common/driver/machine_driver.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/driver/arithmetic.h"
#include "common/driver/wire_values.h"
#include "common/protocol/action_visitor.h"
#include "common/protocol/connections.h"

namespace nereus {
namespace {

// Longest wait in Poll. Frames and posted events end the wait earlier, so this
// limit matters only if a wake-up is lost.
constexpr absl::Duration kPollTimeout = absl::Seconds(1);

// ConnectLimits::unreachable_max for a new mate. When the link is given up, the
// coordinator counts the two workers as two hosts. A longer time would hardly
// help, because both workers have listened since before they joined, and all
// other workers wait meanwhile.
constexpr absl::Duration kMateUnreachableMax = absl::Seconds(5);

// Largest number of samples that are on their way from a device: those of a few
// rounds.
constexpr size_t kDeviceSamplesMax = 3 * kSampledLayersMax;

// Returns the payload of a frame to send. A device can copy a gradient to host
// memory as bfloat16. If bfloat16 is the frame's wire type, returns this copy.
Buffer PayloadOf(const Frame& frame) {
  const bool is_encoded = frame.payload.bytes() == frame.header.payload_bytes;
  if (frame.header.wire != WireType::kBfloat16 || is_encoded) {
    return frame.payload;
  }
  Buffer narrow = frame.payload.AsBfloat16();
  return narrow.bytes() > 0 ? narrow : frame.payload;
}

// Each function returns those buffers that an action reads and that may not
// have arrived. For example, a device may still be copying a gradient to host
// memory (Arrival).
auto SourcesOf(const SendFrame& send) {
  return std::array{PayloadOf(send.frame)};
}
auto SourcesOf(const BroadcastFrame& broadcast) {
  return std::array{PayloadOf(broadcast.frame)};
}
auto SourcesOf(const CopyValues& copy) { return std::array{copy.source}; }
auto SourcesOf(const Accumulate& accumulate) {
  return std::array{accumulate.addend.payload, accumulate.base};
}
auto SourcesOf(const CheckValues& check) { return std::array{check.values}; }
// A sample does not wait: MachineDriver::Checksum looks if the values are
// there.
auto SourcesOf(const ChecksumValues& check) {
  return std::array{check.sampled.has_value() ? Buffer() : check.values};
}
auto SourcesOf(const ScaleValues& scale) { return std::array{scale.values}; }
auto SourcesOf(const SplitGradient& split) {
  return std::array{split.gradient, split.parameters};
}
auto SourcesOf(const UpdateParameters& update) {
  return std::array{update.gradient};
}
auto SourcesOf(const MultiplyFactors& multiply) {
  return std::array{multiply.output_gradient, multiply.input, multiply.addend};
}

// Returns the hello that this process sends to its peers in an epoch.
Hello HelloOf(const EpochStart& start, const Roster& roster) {
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.build = kVersion;
  hello.job = start.job->id;
  hello.epoch = start.job->epoch;
  hello.model_signature = ModelSignature(start.job->layers);
  hello.self = start.self;
  hello.incarnation = roster.at(start.self);
  return hello;
}

}  // namespace

MachineDriver::MachineDriver(Transport* transport, Member* member, int layers,
                             absl::Duration connect_timeout, Events events)
    : transport_(transport),
      member_(member),
      connect_timeout_(connect_timeout),
      events_(std::move(events)),
      trace_(events_.recorder),
      traffic_(layers),
      turn_([this] { transport_->Wake(); }),
      thread_([this] { Run(); }) {}

MachineDriver::~MachineDriver() { Stop(); }

void MachineDriver::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  turn_.Stop();
  thread_.join();
  if (restore_ != nullptr) restore_->Detach();
}

void MachineDriver::Post(Event event) {
  {
    MutexLock lock(&mu_);
    posted_.push_back(std::move(event));
  }
  // If no thread has the turn, there is no thread to wake: the next thread that
  // takes the turn begins with RunPosted.
  if (turn_.taken()) transport_->Wake();
}

Pulse::Beat MachineDriver::OnHeartbeatDue(std::function<void()> answer) {
  Pulse::Beat beat;
  {
    MutexLock lock(&mu_);
    beat = pulse_.OnDue();
  }
  if (!beat.asks) return beat;
  {
    MutexLock lock(&mu_);
    answer_ = std::move(answer);
  }
  // An empty event wakes the driving thread.
  Post([](Outbox&) {});
  return beat;
}

// The driver thread drives until a caller's thread wants the turn, and again
// when the caller's thread has given the turn back.
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
  std::vector<Event> events;
  std::function<void()> answer;
  {
    // The events run after the lock is released, because they may post events.
    MutexLock lock(&mu_);
    answer = std::exchange(answer_, nullptr);
    if (answer != nullptr) pulse_.Answer();
  }
  if (answer != nullptr) {
    FinishSamples();
    answer();
  }
  if (!AdvanceRestore()) return;
  {
    MutexLock lock(&mu_);
    events.swap(posted_);
  }
  for (size_t i = 0; i < events.size(); ++i) {
    RunEvent(events[i]);
    if (restore_ == nullptr) continue;
    // The events behind this one wait, in front of those posted since.
    MutexLock lock(&mu_);
    posted_.insert(posted_.begin(),
                   std::make_move_iterator(events.begin() + i + 1),
                   std::make_move_iterator(events.end()));
    return;
  }
}

void MachineDriver::RunEvent(const Event& event) {
  trace_.Begin();
  event(outbox_);
  Execute();
  trace_.EndEvent();
}

// An encoded payload goes to scratch even if the member has returned a place
// for its values: OnEncodedFrame decodes it into this place.
absl::StatusOr<Landing> MachineDriver::OnHeader(PeerId from,
                                                const FrameHeader& header) {
  if (restore_ != nullptr) return Landing::Wait();
  absl::StatusOr<Landing> landing = member_->OnHeader(from, header);
  const bool placed = landing.ok() && landing->kind == Landing::Kind::kPlace;
  if (placed) landing->place.AwaitUnread();
  return placed && IsEncoded(header) ? Landing::Scratch() : landing;
}

void MachineDriver::OnFrame(PeerId from, const Frame& frame) {
  trace_.Begin();
  traffic_.CountReceived(frame);
  if (events_.received != nullptr) events_.received(frame.header);
  if (IsEncoded(frame.header)) {
    OnEncodedFrame(from, frame);
  } else {
    member_->OnFrame(from, frame, outbox_);
  }
  Execute();
  trace_.EndFrame(start_->self, from, frame.header);
}

void MachineDriver::OnEncodedFrame(PeerId from, const Frame& frame) {
  // The driver asks the member again, because an event may have changed the
  // member since the driver's OnHeader.
  const auto landing = member_->OnHeader(from, frame.header);
  if (!landing.ok()) return;
  if (landing->kind == Landing::Kind::kPlace) {
    DecodePayload(frame.header, frame.payload, landing->place);
    member_->OnFrame(from, {frame.header, landing->place}, outbox_);
  } else if (landing->kind == Landing::Kind::kScratch) {
    member_->OnFrame(from, frame, outbox_);  // Accumulate decodes it.
  }
}

void MachineDriver::OnConnected(PeerId peer) {
  NEREUS_LOG(Debug) << start_->job->NameOf(peer) << " is connected";
  member_->OnConnected(peer);
}

void MachineDriver::OnDisconnected(PeerId peer, const absl::Status& reason) {
  // The lost connection may be no failure: the coordinator knows whether the
  // peer has left.
  const std::string text(reason.ok() ? "closed by the peer" : reason.message());
  NEREUS_LOG(Info, {LogEvent::kConnection})
      << "the connection to " << start_->job->NameOf(peer)
      << " is lost: " << text;
  member_->OnLostPeer(peer, text, outbox_);
  Execute();
}

void MachineDriver::Execute() {
  while (restore_ == nullptr && carried_ < outbox_.actions().size()) {
    const Action& action = outbox_.actions()[carried_++];
    const auto* const follow = std::get_if<FollowEpoch>(&action);
    if (follow != nullptr && lacks_values_) LeaveDamaged(*follow->start);
    const bool does_nothing = ended_ || lacks_values_;
    if (!does_nothing || IsMessage(action)) CarryOut(action);
  }
  if (restore_ != nullptr) return;
  // FollowEpoch is the first action of an epoch. The machine has entered the
  // epoch too only after all other actions.
  const bool entered =
      !ended_ && absl::c_any_of(outbox_.actions(), [](const auto& each) {
        return std::holds_alternative<FollowEpoch>(each);
      });
  outbox_.Clear();
  carried_ = 0;
  if (entered) events_.entered(start_);
}

void MachineDriver::CarryOut(const Action& action) {
  if (!AwaitSources(action)) return;
  const absl::Time begin = trace_.BeginAction();
  std::visit(
      ActionVisitor{
          [&](const SendFrame& send) { Send(send.to, send.frame); },
          [&](const BroadcastFrame& all) { Broadcast(all); },
          [&](const CheckingAction auto& checking) { Check(checking); },
          [&](const ArithmeticAction auto& arithmetic) {
            ExecuteArithmetic(arithmetic);
          },
          [&](const SplitGradient& split) {
            EndUnlessOk(events_.compute->Split(split));
          },
          [&](const MultiplyFactors& factors) { Multiply(factors); },
          [&](const UpdateParameters& update) { Update(update); },
          [&](const ChecksumValues& values) { Checksum(values); },
          [&](const LayerDone& done) { events_.layer_done(done); },
          [&](const PartDone& part) {
            if (events_.part_done != nullptr) events_.part_done(part);
          },
          [&](const ProbeAnswered& probed) {
            if (events_.probed != nullptr) events_.probed(probed);
          },
          [&](const SaveCheckpoint& save) { events_.save(save); },
          [&](const LoadCheckpoint& load) { Load(load); },
          [&](const SendMessage& send) { events_.send_message(send.message); },
          [&](const SendHeartbeat&) {
            if (events_.send_heartbeat != nullptr) events_.send_heartbeat();
          },
          [&](const FollowEpoch& follow) { Follow(follow.start); },
          [&](const EndMembership& end) { events_.ended(end.outcome); },
      },
      action);
  trace_.EndAction(action, begin);
}

template <typename Checking>
void MachineDriver::Check(const Checking& action) {
  OnFound(action, ExecuteArithmetic(action));
}

template <typename Checking>
void MachineDriver::OnFound(const Checking& action, const BadValue& found) {
  if (found.index < 0) return;
  Outbox last;
  member_->OnBadValue(CheckOf(action), found, last);
  End(last);
}

template <typename Checking>
void MachineDriver::OnComputed(const Checking& action,
                               const absl::StatusOr<BadValue>& found) {
  EndUnlessOk(found.status());
  if (found.ok()) OnFound(action, *found);
}

bool MachineDriver::AwaitSources(const Action& action) {
  const auto* split = std::get_if<SplitGradient>(&action);
  if (split != nullptr && events_.compute->SplitsOnDevice(split->layer)) {
    return true;
  }
  const absl::Status arrived = std::visit(
      [this](const auto& typed) -> absl::Status {
        if constexpr (requires { SourcesOf(typed); }) {
          for (const Buffer& source : SourcesOf(typed)) {
            NEREUS_TRY(events_.compute->AwaitNorms(source));
            if (source.IsThere()) continue;
            transport_->Flush();  // So that earlier frames need not wait.
            NEREUS_TRY(source.Await());
          }
        }
        return absl::OkStatus();
      },
      action);
  EndUnlessOk(arrived);
  return arrived.ok();
}

void MachineDriver::Multiply(const MultiplyFactors& factors) {
  // Peers and the coordinator hear that this process lives, and gets further.
  LongWork work = {LongWork::Kind::kMultiply, 0, factors.end - factors.begin};
  const auto found = events_.compute->Multiply(factors, [&](int64_t rows) {
    work.done = rows;
    NoteWork(work);
    transport_->SendAlive();
  });
  NoteWork(std::nullopt);
  OnComputed(factors, found);
}

void MachineDriver::Update(const UpdateParameters& update) {
  transport_->Flush();  // So that earlier frames need not wait.
  OnComputed(update, events_.compute->Update(update));
}

void MachineDriver::Checksum(const ChecksumValues& values) {
  if (!values.sampled.has_value()) {
    return OnChecksum(values,
                      Crc32c(values.values.data(),
                             static_cast<size_t>(values.values.bytes())));
  }
  if (values.values.IsThere()) {
    return OnChecksum(values, SampleChecksum(values.values, *values.sampled));
  }
  if (device_samples_.size() >= kDeviceSamplesMax) return;
  absl::StatusOr<Buffer> copy =
      events_.compute->Sample(values.layer, *values.sampled);
  if (!copy.ok()) return;  // If the device has failed, the next copy says so.
  ChecksumValues& sample = device_samples_.emplace_back(values);
  sample.values = *std::move(copy);
}

// A heartbeat calls this, so no thread waits for the device.
void MachineDriver::FinishSamples() {
  std::vector<ChecksumValues> waiting;
  for (ChecksumValues& sample : std::exchange(device_samples_, {})) {
    if (sample.values.IsThere()) {
      OnChecksum(sample, Crc32c(sample.values.data(),
                                static_cast<size_t>(sample.values.bytes())));
    } else {
      waiting.push_back(std::move(sample));
    }
  }
  device_samples_ = std::move(waiting);
}

void MachineDriver::OnChecksum(const ChecksumValues& values, uint32_t crc) {
  Outbox messages;
  member_->OnChecksum(values, crc, messages);
  for (const Action& message : messages.actions()) CarryOut(message);
}

void MachineDriver::Load(const LoadCheckpoint& load) {
  restore_ = std::make_shared<Restore>([this] { transport_->Wake(); });
  restored_round_ = load.round;
  restored_ = {LongWork::Kind::kRestore, 0, 0};
  restore_seen_at_ = SteadyNow();
  stuck_for_ = absl::ZeroDuration();
  NoteWork(restored_);
  events_.load(load, restore_);
}

bool MachineDriver::AdvanceRestore() {
  if (restore_ == nullptr) return true;
  Restore::Progress progress = restore_->progress();
  const LongWork work = {LongWork::Kind::kRestore, progress.done,
                         std::max(progress.done, progress.total)};
  const absl::Time now = SteadyNow();
  // A pause of this process counts for two looks at most.
  stuck_for_ +=
      std::min(now - std::exchange(restore_seen_at_, now), 2 * kPollTimeout);
  if (work != restored_) stuck_for_ = absl::ZeroDuration();
  restored_ = work;
  NoteWork(work);
  if (!progress.outcome.has_value() && stuck_for_ > start_->lease) {
    progress.outcome = UnavailableError(
        "this server ", DescribeWork(work), ", and the disk has read nothing ",
        "for ", absl::FormatDuration(start_->lease));
  }
  if (!progress.outcome.has_value()) return false;
  restore_->Detach();
  restore_ = nullptr;
  NoteWork(std::nullopt);
  OnRestored(*progress.outcome);
  Execute();
  // The rest may begin another restore.
  return restore_ == nullptr;
}

// Reports no failure of the job: there may be an older checkpoint, or another
// server may be able to load the part.
void MachineDriver::OnRestored(const absl::Status& outcome) {
  if (outcome.ok()) return;
  if (!absl::IsDataLoss(outcome)) {
    ended_ = true;
    return events_.ended(outcome);
  }
  lacks_values_ = true;
  Outbox messages;
  member_->OnDamaged(restored_round_, std::string(outcome.message()), messages);
  for (const Action& message : messages.actions()) CarryOut(message);
}

// The coordinator takes no server without values to an epoch that needs them.
void MachineDriver::LeaveDamaged(const EpochStart& start) {
  lacks_values_ = false;
  if (start.from_base) return;
  ended_ = true;
  events_.ended(InternalError("epoch ", start.job->epoch,
                              " does not begin from a checkpoint, and this "
                              "server has no values: the checkpoint that it "
                              "should have loaded is damaged"));
}

void MachineDriver::EndUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  Outbox last;
  member_->OnFailure(std::string(status.message()), last);
  End(last);
}

void MachineDriver::End(const Outbox& last) {
  ended_ = true;
  for (const Action& message : last.actions()) CarryOut(message);
}

void MachineDriver::NoteWork(const std::optional<LongWork>& work) {
  MutexLock lock(&mu_);
  pulse_.SetWork(work);
}

void MachineDriver::Follow(std::shared_ptr<const EpochStart> start) {
  const std::shared_ptr<const EpochStart> before =
      std::exchange(start_, std::move(start));
  device_samples_.clear();
  const Connections connections = ConnectionsOf(*start_, before.get());
  // This comes before SetRoster, because a process that was replaced and its
  // successor have the same id.
  for (const PeerId peer : connections.dropped) transport_->Disconnect(peer);
  Roster roster = RosterOf(*start_);
  const Hello hello = HelloOf(*start_, roster);
  transport_->SetRoster(hello, std::move(roster));
  transport_->LimitSilence(start_->lease);
  const absl::Time now = SteadyNow();
  for (const EpochMember& member : connections.dialled) {
    // A connection that there has been has a lease to come back: all members
    // wait for it. A peer that is new may not listen yet.
    const absl::Duration timeout =
        member_->HasReached(member.id)
            ? std::min(start_->lease, connect_timeout_)
            : connect_timeout_;
    ConnectLimits limits = {now + timeout};
    const bool is_new_mate = AreMates(*start_->job, start_->self, member.id) &&
                             !member_->HasReached(member.id);
    if (is_new_mate) limits.unreachable_max = kMateUnreachableMax;
    transport_->Connect(member.id, member.data_address, limits);
  }
}

void MachineDriver::Send(PeerId to, const Frame& frame) {
  const absl::Time begin = trace_.BeginAction();
  Frame sent = frame;
  sent.payload = PayloadOf(frame);
  if (sent.payload.bytes() != frame.header.payload_bytes) EncodePayload(sent);
  traffic_.CountSent(sent);
  sent.priority = start_->job->SendPriority(frame.header);
  sent.fused = start_->job->fuses();
  transport_->Send(to, sent);
  trace_.EndSend(start_->self, to, frame.header, begin);
}

void MachineDriver::Broadcast(const BroadcastFrame& broadcast) {
  // Encodes the payload and computes its checksum once for all receivers. With
  // one receiver, the transport computes the checksum, if the frame needs one.
  Frame encoded = broadcast.frame;
  EncodePayload(encoded);
  if (broadcast.to->size() > 1) {
    encoded.header.payload_crc = Crc32c(
        encoded.payload.data(), static_cast<size_t>(encoded.payload.bytes()));
  }
  for (const int32_t rank : *broadcast.to) {
    Send(PeerId::Worker(rank), encoded);
  }
}

}  // namespace nereus
