// The sessions between a simulated cluster's processes and its coordinator.
#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "common/messages/messages.h"
#include "server/coordinator/job_state.h"
#include "server/process/checkpoint_files.h"
#include "tests/simulation/simulated_process.h"

namespace nereus {
namespace {

constexpr absl::Duration kSessionBackoff = absl::Milliseconds(100);

}  // namespace

void SimulatedCluster::OpenSession(ProcessId process) {
  Process& opener = *processes_[process];
  if (opener.session.has_value() || opener.member->over()) return;
  if (coordinator_ == nullptr || Separated(process, kCoordinator)) {
    OnProcess(process, kSessionBackoff,
              [this, process] { OpenSession(process); });
    return;
  }
  opener.session = next_session_++;
  sessions_[*opener.session] = process;
  Outbox out;
  opener.member->OnSession(out);
  Execute(opener, out);
}

// Messages of a session keep their order, and are read back from what would be
// sent, with all checks.

void SimulatedCluster::ToCoordinator(ProcessId process,
                                     const MemberMessage& message) {
  Process& sender = *processes_[process];
  if (!sender.session.has_value()) return;
  sender.last_sent = std::max(sender.last_sent,
                              events_.now() + Draw(options_.network.delay_max));
  const SessionId session = *sender.session;
  const auto read = FromProto(ToProto(message));
  failure_.Update(read.status());
  if (!read.ok()) return;
  events_.At(sender.last_sent, [this, process, session, message = *read] {
    WhenTogether(process, kCoordinator,
                 [this, session, message] { Tell(session, message); });
  });
}

void SimulatedCluster::Tell(SessionId session, const MemberMessage& message) {
  if (events_.now() < coordinator_awake_) {
    events_.At(coordinator_awake_,
               [this, session, message] { Tell(session, message); });
    return;
  }
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || cut_.contains(session)) return;
  const ProcessId process = found->second;
  Note(message.index(), static_cast<uint64_t>(session));
  // It is served, and what it is answered is lost.
  const bool lost = processes_[process]->loses_answer &&
                    !std::holds_alternative<Heartbeat>(message);
  if (lost) BreakSession(process);
  CoordinatorOutbox out;
  coordinator_->OnMessage(session, message, events_.now(), out);
  Carry(std::move(out));
}

void SimulatedCluster::ToMember(ProcessId process, Task task) {
  Process& receiver = *processes_[process];
  receiver.last_told = std::max(
      receiver.last_told, events_.now() + Draw(options_.network.delay_max));
  events_.At(receiver.last_told, [this, process, task = std::move(task)] {
    WhenTogether(kCoordinator, process, task);
  });
}

void SimulatedCluster::Hear(ProcessId process, SessionId session,
                            const CoordinatorMessage& message) {
  if (processes_[process]->session != session || cut_.contains(session)) return;
  Note(message.index(), static_cast<uint64_t>(process));
  RunTask(process, [this, process, message] {
    Process& told = *processes_[process];
    Outbox out;
    told.member->OnMessage(message, out);
    Execute(told, out);
    if (told.alive) network_.OfferAgain(process);
  });
}

void SimulatedCluster::Carry(CoordinatorOutbox out) {
  const bool was_held = !actions_.empty();
  actions_.CarryOut(
      std::move(out), events_.now(),
      [this](const CoordinatorState& state) {
        const bool dies = std::exchange(crash_at_save_, false);
        const bool fails = events_.now() < saves_fail_until_;
        // Before it is on disk, or after.
        if (!fails && (!dies || random_.Chance(0.5))) Keep(state);
        if (dies) CrashCoordinator();
        return fails || dies ? absl::UnavailableError("the disk is gone")
                             : absl::OkStatus();
      },
      [this](const CoordinatorAction& action) { CarryOut(action); });
  if (was_held && actions_.empty() && coordinator_ != nullptr) {
    coordinator_->OnSavedAgain(events_.now());
  }
}

void SimulatedCluster::CarryOut(const CoordinatorAction& action) {
  if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
    Complete(*complete);
  } else if (const auto* send = std::get_if<SendToMember>(&action)) {
    const SessionId session = send->session;
    const auto found = sessions_.find(session);
    if (found == sessions_.end() || cut_.contains(session)) return;
    const ProcessId process = found->second;
    const auto read = FromProto(ToProto(send->message));
    failure_.Update(read.status());
    if (!read.ok()) return;
    ToMember(process, [this, process, session, message = *read] {
      Hear(process, session, message);
    });
  } else if (const auto* end = std::get_if<EndSession>(&action)) {
    const SessionId session = end->session;
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    const ProcessId process = found->second;
    ToMember(process,
             [this, process, session] { EndAtMember(process, session); });
    events_.After(Draw(options_.network.delay_max),
                  [this, session] { EndAtCoordinator(session); });
  }
}

void SimulatedCluster::Keep(const CoordinatorState& state) {
  const bool begins =
      !saved_.has_value() || saved_->epoch.job->epoch != state.epoch.job->epoch;
  // As it is on disk: what the next coordinator reads from there.
  absl::StatusOr<CoordinatorState> kept = DecodeState(EncodeState(state));
  failure_.Update(kept.status());
  if (!kept.ok()) return;
  saved_ = *std::move(kept);
  if (!begins) return;
  for (const Task& fault : std::exchange(at_next_epoch_, {})) fault();
  Note(state.epoch.job->epoch,
       static_cast<uint64_t>(state.epoch.job->first_step));
  // The whole job goes back; or what some have come to is not what the others
  // will.
  if (state.epoch.all_from_base) ForgetAfter(state.epoch.job->base_round);
  std::erase_if(outcomes_, [&](const auto& outcome) {
    const int rank = processes_[outcome.second.by]->rank;
    return std::count(state.epoch.workers_from_base.begin(),
                      state.epoch.workers_from_base.end(), rank) > 0;
  });
}

// The two ends of a session hear of its end each in its time.

void SimulatedCluster::EndAtMember(ProcessId process, SessionId session) {
  RunTask(process, [this, process, session] {
    Process& target = *processes_[process];
    if (target.session != session) return;
    target.session.reset();
    OnProcess(process, kSessionBackoff,
              [this, process] { OpenSession(process); });
  });
}

void SimulatedCluster::EndAtCoordinator(SessionId session) {
  if (events_.now() < coordinator_awake_) {
    events_.At(coordinator_awake_,
               [this, session] { EndAtCoordinator(session); });
    return;
  }
  if (sessions_.erase(session) == 0 || coordinator_ == nullptr) return;
  CoordinatorOutbox out;
  coordinator_->OnSessionEnd(session, events_.now(), out);
  Carry(std::move(out));
}

void SimulatedCluster::BreakSession(ProcessId process) {
  const absl::Duration member = Draw(options_.network.delay_max);
  BreakSession(process, member, Draw(options_.network.delay_max));
}

void SimulatedCluster::BreakSession(ProcessId process, absl::Duration member,
                                    absl::Duration coordinator) {
  Process& target = *processes_[process];
  disturbed_at_ = events_.now();
  target.loses_answer = false;
  if (!target.alive || !target.session.has_value()) return;
  const SessionId session = *target.session;
  if (!cut_.insert(session).second) return;
  events_.After(member,
                [this, process, session] { EndAtMember(process, session); });
  events_.After(coordinator, [this, session] { EndAtCoordinator(session); });
}

void SimulatedCluster::LoseNextAnswer(ProcessId process) {
  processes_[process]->loses_answer = true;
}

void SimulatedCluster::Tick() {
  if (events_.now() < coordinator_awake_) {
    events_.At(coordinator_awake_, [this] { Tick(); });
    return;
  }
  if (coordinator_ != nullptr) {
    CoordinatorOutbox out;
    coordinator_->OnTick(events_.now(), out);
    Carry(std::move(out));
  }
  if (coordinator_ != nullptr &&
      actions_.failing_for(events_.now()) > options_.lease) {
    // It ends, and something starts it again.
    CrashCoordinator();
    events_.After(kReplacementDelay, [this] { RestartCoordinator(); });
  }
  if (MustWait()) disturbed_at_ = events_.now();
  events_.After(kTickInterval, [this] { Tick(); });
}

Measured SimulatedCluster::DrawMeasured() {
  Measured measured;
  measured.times.resize(workload_.layers.size());
  for (LayerTime& time : measured.times) {
    time = {Draw(absl::Milliseconds(2)), Draw(absl::Milliseconds(2))};
  }
  measured.step_time = absl::Milliseconds(1) + Draw(absl::Seconds(1));
  measured.link = {std::pow(10.0, 4 + 6 * random_.Uniform()),
                   Draw(absl::Milliseconds(100)), Draw(absl::Milliseconds(10))};
  return measured;
}

void SimulatedCluster::Beat(ProcessId process) {
  Process& beating = *processes_[process];
  if (!beating.alive) return;
  events_.After(kHeartbeatInterval, [this, process] { Beat(process); });
  if (beating.paused) return;
  const Pulse::Beat beat = beating.pulse.OnDue();
  if (beat.asks) {
    RunTask(process, [this, process] { processes_[process]->pulse.Answer(); });
  }
  if (!beat.is_alive || beating.member->start() == nullptr) return;
  Heartbeat heartbeat;
  if (beating.worker != nullptr) {
    heartbeat.begun_step = beating.worker->Report().begun_step;
    heartbeat.round = std::max(kInitialRound, beating.step - 1);
  }
  if (beating.server != nullptr) {
    heartbeat.epoch = beating.member->start()->job->epoch;
    heartbeat.current_backups = beating.server->current_backups();
  }
  ToCoordinator(process, heartbeat);
}

// The coordinator's life.

void SimulatedCluster::CrashCoordinator(bool halfway) {
  if (coordinator_ == nullptr) return;
  if (halfway) {
    crash_at_save_ = true;
    return;
  }
  disturbed_at_ = events_.now();
  coordinator_.reset();
  actions_.Clear();
  coordinator_awake_ = absl::InfinitePast();
  ++coordinator_life_;
  for (const auto& [session, process] : std::exchange(sessions_, {})) {
    ToMember(process,
             [this, id = process, ended = session] { EndAtMember(id, ended); });
  }
}

void SimulatedCluster::RestartCoordinator() {
  if (coordinator_ != nullptr) return;
  disturbed_at_ = events_.now();
  actions_.Clear();
  if (!saved_.has_value()) {
    coordinator_ = std::make_unique<Coordinator>(CoordinatorOptionsOf());
    return;
  }
  CoordinatorState state = *saved_;
  if (options_.has_disk) {
    const auto newest = FindNewest(disk_);
    failure_.Update(newest.status());
    if (newest.ok() && newest->has_value()) {
      state.checkpoints.newest = (*newest)->record;
    }
  }
  coordinator_ = std::make_unique<Coordinator>(CoordinatorOptionsOf(),
                                               std::move(state), events_.now());
}

absl::Status SimulatedCluster::RequestCheckpoint() {
  if (coordinator_ == nullptr) return absl::UnavailableError("no coordinator");
  CoordinatorOutbox out;
  const absl::Status status =
      coordinator_->RequestCheckpoint(events_.now(), out);
  Carry(std::move(out));
  return status;
}

}  // namespace nereus
