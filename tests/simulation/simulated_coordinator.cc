#include "tests/simulation/simulated_coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/coordinator/job_state.h"
#include "server/process/checkpoint_files.h"

// Every event ends in Carry, which gives the coordinator's outbox to SaveFirst.
// SaveFirst passes an action on only after the state before it is saved
// (EndSave, Keep). Tick, Crash and Restart are the life of the process.

namespace nereus {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(200);

// Time until the coordinator is started again after it ended by itself.
constexpr absl::Duration kRestartDelay = absl::Seconds(1);

// Longest time of a save on a disk without faults.
constexpr absl::Duration kSaveTimeMax = absl::Milliseconds(20);

}  // namespace

SimulatedCoordinator::SimulatedCoordinator(SimulatedWorld* world,
                                           SimulatedDisk* disk, Hooks hooks)
    : world_(world),
      disk_(disk),
      hooks_(std::move(hooks)),
      coordinator_(std::make_unique<Coordinator>(MakeOptions())) {}

CoordinatorOptions SimulatedCoordinator::MakeOptions() const {
  const SimulatedClusterOptions& options = world_->options;
  CoordinatorOptions made;
  made.spec.name = kSimulatedJob;
  made.job_id = SimulatedJobId(options);
  made.spec.workers = options.workers;
  made.spec.shards = options.shards;
  made.own_shard = options.coordinator_is_shard_0 ? 0 : -1;
  made.spec.min_workers = options.min_workers;
  made.spec.max_workers = options.max_workers;
  made.spec.rules = options.rules;
  made.spec.options = options.job;
  // The workers say where the optimizer runs.
  made.spec.options.optimizer_place = OptimizerPlace::kServer;
  made.spec.lease_seconds = absl::ToDoubleSeconds(options.lease);
  made.join_share = options.join_share;
  made.replan_interval = absl::ZeroDuration();
  made.has_checkpoints = options.has_disk;
  return made;
}

// ---- Events.

void SimulatedCoordinator::Start() {
  world_->events.After(kTickInterval, [this] { Tick(); });
}

void SimulatedCoordinator::Tick() {
  const absl::Time now = world_->events.now();
  if (is_asleep()) {
    world_->events.At(awake_at_, [this] { Tick(); });
    return;
  }
  if (coordinator_ != nullptr) {
    CoordinatorOutbox out;
    if (actions_.messages() > 0) coordinator_->OnHeldBack(now);
    coordinator_->OnTick(now, out);
    Carry(std::move(out));
  }
  // A coordinator that cannot save ends by itself.
  if (coordinator_ != nullptr &&
      actions_.IsHopeless(world_->options.lease, now)) {
    Crash();
    world_->events.After(kRestartDelay, [this] { Restart(); });
  }
  // While a save hangs, steps go on, unless members wait for its end.
  const bool hangs = now < saves_hang_until_ && actions_.messages() > 0;
  if (hangs || hooks_.may_stand_still()) world_->Disturb();
  world_->events.After(kTickInterval, [this] { Tick(); });
}

void SimulatedCoordinator::OnMessage(SessionId session,
                                     const MemberMessage& message) {
  CoordinatorOutbox out;
  coordinator_->OnMessage(session, message, world_->events.now(), out);
  Carry(std::move(out));
}

void SimulatedCoordinator::OnSessionEnd(SessionId session) {
  if (coordinator_ == nullptr) return;
  CoordinatorOutbox out;
  coordinator_->OnSessionEnd(session, world_->events.now(), out);
  Carry(std::move(out));
}

absl::Status SimulatedCoordinator::RequestCheckpoint() {
  if (coordinator_ == nullptr) return UnavailableError("no coordinator");
  CoordinatorOutbox out;
  const absl::Status status =
      coordinator_->RequestCheckpoint(world_->events.now(), out);
  Carry(std::move(out));
  return status;
}

// ---- Actions.

void SimulatedCoordinator::Carry(CoordinatorOutbox out) {
  actions_.Add(std::move(out));
  GoOn();
}

void SimulatedCoordinator::GoOn() {
  while (const auto action = actions_.Next()) CarryOut(*action);
  if (coordinator_ == nullptr) return;
  auto state = actions_.BeginSave(world_->events.now());
  if (state == nullptr) return;
  saving_ = std::move(state);
  world_->events.After(world_->Draw(kSaveTimeMax),
                       [this, life = life_] { EndSave(life); });
}

void SimulatedCoordinator::CarryOut(const CoordinatorAction& action) {
  if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
    Complete(*complete);
  } else if (const auto* damaged = std::get_if<SetCheckpointAside>(&action)) {
    SetAside(*damaged);
  } else if (const auto* late = std::get_if<DropManifest>(&action)) {
    disk_->DropLateManifest(late->record);
  } else {
    hooks_.send(action);
  }
}

void SimulatedCoordinator::EndSave(int life) {
  if (life != life_) return;
  const absl::Time now = world_->events.now();
  const absl::Time goes_on_at = std::max(saves_hang_until_, awake_at_);
  if (now < goes_on_at) {
    return world_->events.At(goes_on_at, [this, life] { EndSave(life); });
  }
  if (std::exchange(crash_at_save_, false)) return Crash();
  const auto state = std::exchange(saving_, nullptr);
  const bool fails = now < saves_fail_until_;
  if (!fails) Keep(*state);
  if (life != life_) return;
  actions_.OnSaved(
      fails ? UnavailableError("the disk is gone") : absl::OkStatus(), now);
  coordinator_->OnHeldBack(now);
  GoOn();
}

void SimulatedCoordinator::Keep(const CoordinatorState& state) {
  const Job* const job = state.epoch.job.get();
  const bool begins =
      job != nullptr && (!saved_.has_value() || saved_->epoch.job == nullptr ||
                         saved_->epoch.job->epoch != job->epoch);
  // The next coordinator reads the state from this encoding.
  absl::StatusOr<CoordinatorState> kept = DecodeState(EncodeState(state));
  if (!kept.ok()) {
    return world_->laws.Tell(Unreadable{"the saved state", kept.status()});
  }
  saved_ = *std::move(kept);
  if (!begins) return;
  for (const Task& fault : std::exchange(at_next_epoch_, {})) fault();
  world_->Note(state.epoch.job->epoch,
               static_cast<uint64_t>(state.epoch.job->history.first_step));
  const auto& from_base = state.epoch.workers_from_base;
  world_->laws.Tell(EpochBegun{state.epoch.job.get(),
                               state.epoch.all_from_base,
                               {from_base.begin(), from_base.end()}});
}

void SimulatedCoordinator::Complete(const CompleteCheckpoint& complete) {
  world_->events.At(disk_->NextManifestAt(), [this, complete, then = life_] {
    if (life_ != then || coordinator_ == nullptr) return;
    const bool is_late =
        coordinator_->checkpoints().IsAbandoned(complete.record.round);
    const SimulatedDisk::Written written =
        is_late ? SimulatedDisk::Written{disk_->WriteLateManifest(complete)}
                : disk_->WriteManifest(complete);
    if (written.crashed) return Crash();
    CoordinatorOutbox out;
    coordinator_->OnCheckpoint(complete.record.round, written.status,
                               world_->events.now(), out);
    Carry(std::move(out));
  });
}

void SimulatedCoordinator::SetAside(const SetCheckpointAside& damaged) {
  world_->events.At(disk_->NextManifestAt(), [this, damaged, then = life_] {
    if (life_ != then || coordinator_ == nullptr) return;
    const SimulatedDisk::FoundAside found = disk_->SetAside(damaged);
    if (found.crashed) return Crash();
    CoordinatorOutbox out;
    coordinator_->OnSetAside(damaged.round, found.outcome, world_->events.now(),
                             out);
    Carry(std::move(out));
  });
}

// ---- The life of the process.

void SimulatedCoordinator::Crash() {
  if (coordinator_ == nullptr) return;
  world_->Disturb();
  coordinator_.reset();
  actions_ = SaveFirst();
  awake_at_ = absl::InfinitePast();
  ++life_;
  // The state that is being saved may get onto the disk all the same.
  const auto state = std::exchange(saving_, nullptr);
  if (state != nullptr && world_->events.now() >= saves_fail_until_ &&
      world_->random.Chance(0.5)) {
    Keep(*state);
  }
  hooks_.end_sessions();
}

void SimulatedCoordinator::Restart() {
  if (coordinator_ != nullptr) return;
  world_->Disturb();
  // The state file is on the disk that hangs.
  if (world_->events.now() < saves_hang_until_) {
    return world_->events.At(saves_hang_until_, [this] { Restart(); });
  }
  if (!saved_.has_value()) {
    coordinator_ = std::make_unique<Coordinator>(MakeOptions());
    return;
  }
  CoordinatorState state = *saved_;
  if (world_->options.has_disk) {
    const absl::Status read = disk_->UpdateNewest(state.checkpoints);
    if (!read.ok()) {
      world_->laws.Tell(Unreadable{"the newest checkpoint", read});
    }
  }
  coordinator_ = std::make_unique<Coordinator>(MakeOptions(), std::move(state),
                                               world_->events.now());
}

void SimulatedCoordinator::PauseFor(absl::Duration time) {
  awake_at_ = world_->events.now() + time;
}

void SimulatedCoordinator::FailSavesFor(absl::Duration time) {
  saves_fail_until_ = world_->events.now() + time;
}

void SimulatedCoordinator::HangSavesFor(absl::Duration time) {
  saves_hang_until_ = world_->events.now() + time;
}

bool SimulatedCoordinator::has_begun() const {
  return coordinator_ != nullptr
             ? coordinator_->job() != nullptr
             : saved_.has_value() && saved_->epoch.job != nullptr;
}

const Job& SimulatedCoordinator::job() const {
  return coordinator_ != nullptr ? *coordinator_->job() : *saved_->epoch.job;
}

uint64_t SimulatedCoordinator::restarted_in() const {
  return coordinator_ != nullptr
             ? coordinator_->checkpoints().state().restarted_in
             : saved_->checkpoints.restarted_in;
}

}  // namespace nereus
