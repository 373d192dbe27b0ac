#include "tests/simulation/simulated_sessions.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/messages/messages.h"

// A message to the coordinator goes through ToCoordinator and Tell. A message
// from the coordinator goes through CarryOut, SendToProcess and Hear. Break,
// OnDeath and an action of the coordinator end a session; EndAtMember and
// EndAtCoordinator follow, in either order.

namespace nereus {
namespace {

constexpr absl::Duration kBackoff = absl::Milliseconds(100);

}  // namespace

SimulatedSessions::SimulatedSessions(SimulatedWorld* world,
                                     SimulatedPartition* partition,
                                     SimulatedCoordinator* coordinator,
                                     SimulatedConnections* connections)
    : world_(world),
      partition_(partition),
      coordinator_(coordinator),
      connections_(connections) {}

absl::Duration SimulatedSessions::DrawDelay() {
  return world_->Draw(world_->options.network.delay_max);
}

void SimulatedSessions::Open(ProcessId id) {
  SimulatedProcess& process = world_->processes[id];
  End& end = ends_[id];
  if (end.session.has_value() || process.member->over()) return;
  if (coordinator_->get() == nullptr ||
      partition_->Separates(id, kCoordinator)) {
    process.RunAfter(world_->events, kBackoff, [this, id] { Open(id); });
    return;
  }
  end.session = next_session_++;
  end.opened_at = world_->events.now();
  open_[*end.session] = id;
  Outbox out;
  process.member->OnSession(out);
  world_->execute(process, out);
}

void SimulatedSessions::Beat(ProcessId id) {
  SimulatedProcess& process = world_->processes[id];
  if (!process.alive) return;
  world_->events.After(kHeartbeatInterval, [this, id] { Beat(id); });
  if (process.halt == SimulatedProcess::Halt::kPaused) return;
  const Pulse::Beat beat = process.pulse.OnDue();
  const bool is_reading = process.halt == SimulatedProcess::Halt::kReading;
  if (beat.asks && is_reading) {
    process.pulse.Answer();
  } else if (beat.asks) {
    process.Run([&process] { process.pulse.Answer(); });
  }
  if (!beat.is_alive) return;
  SendHeartbeatOf(id);
  if (!process.is_admitted_worker()) return;
  const std::optional<Gather> gather = process.worker->UnansweredGather();
  if (gather.has_value()) ToCoordinator(id, *gather);
}

void SimulatedSessions::SendHeartbeatOf(ProcessId id) {
  SimulatedProcess& process = world_->processes[id];
  Heartbeat heartbeat;
  if (process.is_admitted_worker()) heartbeat = process.worker->MakeHeartbeat();
  if (process.start() != nullptr) {
    heartbeat.epoch = process.start()->job->epoch;
  }
  if (process.halt == SimulatedProcess::Halt::kReading) {
    // The process reads a byte each nanosecond.
    heartbeat.work = {LongWork::Kind::kRestore,
                      absl::ToUnixNanos(world_->events.now()),
                      std::numeric_limits<int64_t>::max()};
  }
  if (process.server != nullptr) {
    heartbeat.current_backups = process.server->current_backups();
  }
  ToCoordinator(id, heartbeat);
}

// ---- Messages.

void SimulatedSessions::ToCoordinator(ProcessId process,
                                      const MemberMessage& message) {
  End& end = ends_[process];
  if (!end.session.has_value()) return;
  end.sent_at = std::max(end.sent_at, world_->events.now() + DrawDelay());
  const SessionId session = *end.session;
  const auto read = FromProto(ToProto(message));
  if (!read.ok()) {
    world_->laws.Tell(Unreadable{absl::StrCat("a message of process ", process),
                                 read.status()});
    return;
  }
  world_->events.At(end.sent_at, [this, process, session, message = *read] {
    partition_->WhenTogether(process, kCoordinator, [this, session, message] {
      Tell(session, message);
    });
  });
}

void SimulatedSessions::Tell(SessionId session, const MemberMessage& message) {
  if (coordinator_->is_asleep()) {
    world_->events.At(coordinator_->awake_at(),
                      [this, session, message] { Tell(session, message); });
    return;
  }
  const auto found = open_.find(session);
  if (found == open_.end() || IsCut(session)) return;
  const ProcessId process = found->second;
  world_->Note(message.index(), static_cast<uint64_t>(session));
  const bool is_lost = ends_[process].loses_answer &&
                       !std::holds_alternative<Heartbeat>(message);
  if (is_lost) Break(process);
  coordinator_->OnMessage(session, message);
}

void SimulatedSessions::CarryOut(const CoordinatorAction& action) {
  if (const auto* send = std::get_if<SendToMember>(&action)) {
    SendToProcess(*send);
  } else if (const auto* end = std::get_if<EndSession>(&action)) {
    const SessionId session = end->session;
    const auto found = open_.find(session);
    if (found == open_.end()) return;
    AtMember(found->second, [this, process = found->second, session] {
      EndAtMember(process, session);
    });
    world_->events.After(DrawDelay(),
                         [this, session] { EndAtCoordinator(session); });
  }
}

void SimulatedSessions::SendToProcess(const SendToMember& send) {
  const SessionId session = send.session;
  const auto found = open_.find(session);
  if (found == open_.end() || IsCut(session)) return;
  const ProcessId process = found->second;
  const auto read = FromProto(ToProto(send.message));
  if (!read.ok()) {
    world_->laws.Tell(Unreadable{absl::StrCat("a message to process ", process),
                                 read.status()});
    return;
  }
  if (const auto* const refusal = std::get_if<Refusal>(&*read);
      refusal != nullptr && absl::IsCancelled(refusal->why)) {
    TellDeath(process, *refusal);
  }
  AtMember(process, [this, process, session, message = *read] {
    Hear(process, session, message);
  });
}

void SimulatedSessions::TellDeath(ProcessId id, const Refusal& refusal) {
  const SimulatedProcess& process = world_->processes[id];
  CountedAsDead dead = {id, std::string(refusal.why.message()), std::nullopt,
                        world_->options.lease};
  const bool is_reading = process.halt == SimulatedProcess::Halt::kReading;
  const bool is_able = process.alive && (!process.is_halted() || is_reading) &&
                       !partition_->Separates(id, kCoordinator);
  if (is_able) {
    const absl::Time since = std::max(
        {process.resumed_at, ends_[id].opened_at, partition_->healed_at()});
    dead.able_for = world_->events.now() - since;
  }
  world_->laws.Tell(dead);
}

void SimulatedSessions::AtMember(ProcessId process, Task task) {
  End& end = ends_[process];
  end.told_at = std::max(end.told_at, world_->events.now() + DrawDelay());
  world_->events.At(end.told_at, [this, process, task = std::move(task)] {
    partition_->WhenTogether(kCoordinator, process, task);
  });
}

void SimulatedSessions::Hear(ProcessId id, SessionId session,
                             const CoordinatorMessage& message) {
  if (ends_[id].session != session || IsCut(session)) return;
  world_->Note(message.index(), static_cast<uint64_t>(id));
  SimulatedProcess& process = world_->processes[id];
  process.Run([this, &process, message] {
    Outbox out;
    process.member->OnMessage(message, out);
    world_->execute(process, out);
    if (const auto* answer = std::get_if<Gathered>(&message);
        answer != nullptr && process.is_admitted_worker()) {
      process.worker->OnGathered(*answer);
    }
    if (const auto* rule = std::get_if<TurnRule>(&message);
        rule != nullptr && process.worker != nullptr) {
      process.worker->OnTurnRule(*rule);
    }
    // The machine may now be ready for frames that arrived too early.
    if (process.alive) connections_->network().OfferAgain(process.id);
  });
}

// ---- Ends.

void SimulatedSessions::EndAtMember(ProcessId id, SessionId session) {
  SimulatedProcess& process = world_->processes[id];
  process.Run([this, &process, session] {
    End& end = ends_[process.id];
    if (end.session != session) return;
    end.session.reset();
    process.RunAfter(world_->events, kBackoff,
                     [this, id = process.id] { Open(id); });
  });
}

void SimulatedSessions::EndAtCoordinator(SessionId session) {
  if (coordinator_->is_asleep()) {
    world_->events.At(coordinator_->awake_at(),
                      [this, session] { EndAtCoordinator(session); });
    return;
  }
  if (open_.erase(session) > 0) coordinator_->OnSessionEnd(session);
}

void SimulatedSessions::Break(ProcessId process) {
  const absl::Duration member = DrawDelay();
  Break(process, member, DrawDelay());
}

void SimulatedSessions::Break(ProcessId process, absl::Duration member,
                              absl::Duration coordinator) {
  End& end = ends_[process];
  world_->Disturb();
  end.loses_answer = false;
  if (!world_->processes.alive(process) || !end.session.has_value()) return;
  const SessionId session = *end.session;
  if (!cut_.insert(session).second) return;
  world_->events.After(
      member, [this, process, session] { EndAtMember(process, session); });
  world_->events.After(coordinator,
                       [this, session] { EndAtCoordinator(session); });
}

void SimulatedSessions::OnDeath(ProcessId process) {
  End& end = ends_[process];
  if (end.session.has_value()) {
    world_->events.After(DrawDelay(), [this, process, session = *end.session] {
      partition_->WhenTogether(process, kCoordinator,
                               [this, session] { EndAtCoordinator(session); });
    });
  }
  end.session.reset();
}

void SimulatedSessions::OnCoordinatorDeath() {
  for (const auto& [session, process] : std::exchange(open_, {})) {
    AtMember(process, [this, process = process, session = session] {
      EndAtMember(process, session);
    });
  }
}

}  // namespace nereus
