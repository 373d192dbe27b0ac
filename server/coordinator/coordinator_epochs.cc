#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "server/coordinator/coordinator.h"

namespace nereus {
namespace {

constexpr uint64_t kFirstEpoch = 1;

// How long a job waits, at most, for its last checkpoint: longer than any disk
// takes. Where somebody was lost, what others wait for may never come: then a
// lease.
const absl::Duration kLastCheckpointTime = absl::Minutes(30);

// Of those that were not written, the latest.
constexpr size_t kFailedKept = 16;

bool AllCopiesAreWhole(const Job& job) {
  return std::all_of(
      job.shard_servers.begin(), job.shard_servers.end(),
      [](const ShardServers& each) { return each.backup_is_current; });
}

}  // namespace

void Coordinator::Advance(absl::Time now, CoordinatorOutbox& out) {
  SettleClaims(now, out);
  if (state_ == JobState::kGathering &&
      Count(Role::kWorker) == options_.workers &&
      Count(Role::kShard) == options_.shards) {
    const absl::Status started = StartJob();
    if (!started.ok()) {
      Fail(std::string(started.message()), out);
      return;
    }
    state_ = JobState::kRunning;
    Admit(now, out);
  }
  if (state_ != JobState::kRunning) return;
  if (AllLeft()) return FinishIfAllLeft(now, out);
  ReleaseLeavers(now, out);
  if (!target_.has_value() && NeedsChange()) StartChange(now, out);
  if (target_.has_value() && EveryoneIsHere() && EveryoneReported()) {
    FinishChange(now, out);
  }
}

void Coordinator::SettleClaims(absl::Time now, CoordinatorOutbox& out) {
  for (Claim& claim : std::exchange(claims_, {})) {
    absl::Status status = CheckJoin(claim.request);
    if (!absl::IsAlreadyExists(status)) {
      OnJoin(claim.session, claim.request, now, out);
      // It may be dead itself by now.
      Member* const joined = Find(claim.session);
      if (joined != nullptr) joined->last_message_at = claim.since;
    } else if (FindHolder(claim.request)->last_message_at >
               claim.since + kHeartbeatInterval) {
      Refuse(claim.session, std::move(status), out);
    } else {
      claims_.push_back(std::move(claim));
    }
  }
}

absl::Status Coordinator::StartJob() {
  const auto worker =
      std::find_if(members_.begin(), members_.end(),
                   [](const Member& m) { return m.id.role == Role::kWorker; });
  const std::vector<LayerSpec>& layers = worker->request.layers;
  absl::StatusOr<Plan> plan =
      replanner_.FirstPlan(layers, {options_.workers, options_.shards});
  if (!plan.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no plan: ", plan.status().message()));
  }
  // Some that joined may have gone: ranks begin without gaps.
  next_rank_ = 0;
  for (Member& member : members_) {
    if (member.id.role == Role::kWorker) {
      member.id = PeerId::Worker(next_rank_++);
    }
  }
  Job job;
  job.id = options_.job_id;
  job.epoch = kFirstEpoch;
  job.workers = FirstWorkers(next_rank_);
  job.worker_names = WorkerNames();
  job.layers = layers;
  job.routes = std::move(plan->routes);
  job.options = options_.job_options;
  job.options.measure = replanner_.measures(options_.job_options);
  job.options.has_checkpoints = options_.has_checkpoints;
  job.state_arrays = worker->request.state_arrays;
  // A shard may die early: there should be something to go back to.
  if (options_.has_checkpoints) job.checkpoint_round = 0;
  if (options_.restored.has_value()) {
    job.base_round = options_.restored->round;
    job.first_step = job.base_round + 1;
    job.contributions_before = options_.restored->contributions;
    job.checkpoint_round = kInitialRound;
    for (EpochWorker& each : job.workers) each.first_step = job.first_step;
    checkpoints_.OnComplete(*options_.restored);
  }
  NEREUS_ASSIGN_OR_RETURN(job_, MakeJob(std::move(job), options_.shards));
  explanations_ = std::move(plan->explanations);
  last_target_ = kFirstEpoch;
  checkpoints_.OnEpoch(*job_, /*restarted=*/options_.restored.has_value());
  return absl::OkStatus();
}

bool Coordinator::GoneBeyond(int64_t step) const {
  return std::any_of(
      members_.begin(), members_.end(), [&](const Member& member) {
        if (member.id.role != Role::kWorker) return false;
        // One who joins may wait for the one who has left to begin that step.
        const int position = job_->PositionOf(member.id.rank);
        const bool joins =
            position >= 0 && job_->workers[position].first_step > step;
        return joins || member.heartbeat.begun_step > step;
      });
}

bool Coordinator::NeedsChange() const {
  // One without a session may come back; it is dead soon if it does not.
  if (members_lost_ || restarted_) return true;
  if (job_->switches() ? EveryoneSettled() : better_plan_ && !SomeLeave()) {
    return true;
  }
  if (checkpoint_wanted_ && !checkpoint_planned_) return true;
  if (ACopyBecameWhole()) return true;
  for (const Member& member : members_) {
    if (!member.admitted && member.session.has_value()) return true;
    if (!member.left.has_value()) continue;
    // The others go on without one who has left. Until one of them wants to,
    // they may all be about to leave; where rounds do not wait for all, some
    // may be long before that.
    if (job_->PositionOf(member.id.rank) >= 0 &&
        (job_->partial() || GoneBeyond(*member.left))) {
      return true;
    }
  }
  // A member without a session may be dead: that is settled first.
  return std::any_of(new_broken_links_.begin(), new_broken_links_.end(),
                     [&](const Link& link) {
                       const Member* first = Find(link.first);
                       const Member* second = Find(link.second);
                       return first != nullptr && second != nullptr &&
                              first->session.has_value() &&
                              second->session.has_value();
                     });
}

void Coordinator::StartChange(absl::Time now, CoordinatorOutbox& out) {
  target_ = ++last_target_;
  for (Member& member : members_) {
    member.said.reset();
    member.asked_at = now;
    // Mostly all is settled long before a notice is due.
    member.noticed = now;
    if (!member.admitted || !member.session.has_value()) continue;
    out.push_back(SendToMember{*member.session, PrepareEpoch{*target_}});
  }
}

bool Coordinator::EveryoneIsHere() const {
  const bool served = !shard_lost_ || Count(Role::kShard) == options_.shards;
  return served && WorkersHere() >= options_.min_workers;
}

void Coordinator::NoteWholeCopies(const Member& member,
                                  const Heartbeat& heartbeat) {
  if (job_ == nullptr || heartbeat.epoch != job_->epoch || !member.admitted) {
    return;
  }
  for (int shard = 0; shard < options_.shards; ++shard) {
    const ShardServers& servers = job_->shard_servers[shard];
    const auto& whole = heartbeat.current_backups;
    if (member.id == PeerId::Shard(servers.primary) && servers.backup != -1 &&
        std::count(whole.begin(), whole.end(), shard) > 0) {
      current_backups_.insert(shard);
    }
  }
}

bool Coordinator::CopyIsWhole(int shard) const {
  return job_->shard_servers[shard].backup_is_current ||
         current_backups_.contains(shard);
}

bool Coordinator::ACopyBecameWhole() const {
  for (int shard = 0; shard < options_.shards; ++shard) {
    if (!job_->shard_servers[shard].backup_is_current && CopyIsWhole(shard))
      return true;
  }
  return false;
}

bool Coordinator::EveryShardHasHolder() const {
  const auto lives = [&](int server) {
    const Member* member = Find(PeerId::Shard(server));
    return member != nullptr && member->admitted;
  };
  for (int shard = 0; shard < options_.shards; ++shard) {
    const ShardServers& servers = job_->shard_servers[shard];
    if (lives(servers.primary)) continue;
    if (!lives(servers.backup) || !CopyIsWhole(shard)) return false;
  }
  return true;
}

bool Coordinator::EveryoneReported() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return !m.admitted || m.said.has_value();
  });
}

bool Coordinator::EveryoneSettled() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return !m.admitted || m.left.has_value() || m.drained;
  });
}

bool Coordinator::SomeLeave() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.left.has_value(); });
}

std::map<int32_t, std::string> Coordinator::WorkerNames() const {
  std::map<int32_t, std::string> names;
  for (const Member& member : members_) {
    if (member.id.role != Role::kWorker) continue;
    names[member.id.rank] = member.request.name;
  }
  return names;
}

EpochChange Coordinator::GatherReports() const {
  EpochChange change;
  for (const Member& member : members_) {
    if (member.id.role == Role::kShard) {
      change.servers.push_back(
          {member.id.rank, !member.admitted,
           member.admitted ? member.said->report : MachineReport()});
    } else if (member.admitted) {
      change.workers.push_back(
          {member.id.rank, member.left.has_value(), member.said->report});
    } else {
      change.joiners.push_back(member.id.rank);
    }
  }
  for (int shard = 0; shard < options_.shards; ++shard) {
    if (CopyIsWhole(shard)) change.current_backups.push_back(shard);
  }
  change.worker_names = WorkerNames();
  change.checkpoint = checkpoint_wanted_;
  change.fusion_bytes = fusion_.bytes();
  return change;
}

void Coordinator::FinishChange(absl::Time now, CoordinatorOutbox& out) {
  EpochChange change = GatherReports();
  std::optional<Replanner::BetterPlan> better;
  if (!shard_lost_) better = replanner_.Better(*job_, WorkersHere());
  // One who leaves would have to be told of the plan, for nothing.
  if (better.has_value() && !SomeLeave() && IsSafeToChangePlan()) {
    change.routes = better->plan.routes;
  }
  absl::StatusOr<NextEpoch> next =
      shard_lost_ ? absl::AbortedError("a shard is gone, with what it held")
                  : MakeNextEpoch(*job_, *target_, change);
  const int64_t begun_step = LastBegunStep();
  const bool restarts = !next.ok();
  // A checkpoint that is nearly there is what the job goes back to.
  if (restarts && !completing_.empty()) return;
  if (restarts && checkpoints_.newest().has_value()) {
    const CheckpointRecord& record = *checkpoints_.newest();
    next = MakeRestartedEpoch(*job_, *target_,
                              {record.round, record.contributions}, change);
  }
  if (!next.ok()) {
    return Fail(
        absl::StrCat(next.status().message(),
                     checkpoints_.newest().has_value()
                         ? ""
                         : ", and there is no checkpoint to go on from"),
        out);
  }
  all_from_base_ = restarts;
  if (restarts) failed_checkpoints_.clear();  // They are tried again.
  const bool had_copies = AllCopiesAreWhole(*job_);
  if (next->job->routes != job_->routes) {
    explanations_ = std::move(better->plan.explanations);
  }
  const JobPtr before = std::exchange(job_, next->job);
  workers_from_base_ = std::move(next->workers_from_base);
  target_.reset();
  current_backups_.clear();
  members_lost_ = false;
  shard_lost_ = false;
  const bool was_restarted = std::exchange(restarted_, false);
  if (all_from_base_ || !workers_from_base_.empty()) replicas_.Clear();
  // What could not be asked for yet has to come.
  better_plan_ = (SomeLeave() || restarts) && WantsAnotherPlan();
  checkpoint_planned_ = checkpoint_wanted_;
  reset_links_ = std::exchange(new_broken_links_, {});
  checkpoints_.OnEpoch(*job_, all_from_base_);
  const bool changes_plan = job_->routes != before->routes;
  replanner_.OnEpoch(*job_, changes_plan);
  if (changes_plan && fusion_.bytes().has_value()) {
    // What was measured is of the plan before.
    const bool predicted = replanner_.measures(job_->options);
    fusion_.Restart(predicted ? better->plan.fusion_bytes : *fusion_.bytes(),
                    BegunStep());
  }
  out.push_back(Announce{
      false,
      absl::StrCat("epoch ", job_->epoch, " with ", job_->worker_count(),
                   " workers, from step ", job_->first_step,
                   job_->routes != before->routes
                       ? absl::StrCat(", with another plan: ", better->why)
                       : "")});
  TellRecovery(was_restarted, begun_step, now, out);
  if (!had_copies && AllCopiesAreWhole(*job_)) {
    out.push_back(Announce{false, "every shard has its copy again"});
  }
  Admit(now, out);
}

void Coordinator::Admit(absl::Time now, CoordinatorOutbox& out) {
  epoch_members_.clear();
  for (Member& member : members_) {
    epoch_members_.push_back(
        {member.id, member.request.incarnation, member.request.data_address});
    if (all_from_base_) member.left.reset();
    if (!member.admitted || all_from_base_) {
      member.heartbeat.begun_step = job_->first_step - 1;
      member.heartbeat.round = job_->base_round;
    }
    member.admitted = true;
    member.said.reset();
    member.drained = false;
    member.heard = now;
  }
  out.push_back(SaveState{StateToSave()});
  for (const Member& member : members_) {
    if (!member.session.has_value()) continue;  // It is told when it resumes.
    out.push_back(SendToMember{*member.session, StartFor(member)});
  }
  std::vector<int32_t> workers;
  for (const EpochWorker& each : job_->workers) workers.push_back(each.rank);
  const auto set = fusion_.OnEpoch(std::move(workers), job_->first_step - 1);
  if (set.has_value()) TellWorkers(*set, out);
}

bool Coordinator::IsSafeToChangePlan() const {
  const bool hands_over = std::any_of(
      job_->routes.begin(), job_->routes.end(),
      [](const Route& route) { return !UsesServers(route.scheme); });
  return !job_->options.backup || options_.has_checkpoints || !hands_over;
}

int64_t Coordinator::LastBegunStep() const {
  int64_t begun_step = BegunStep();
  for (const Member& member : members_) {
    if (!member.said.has_value()) continue;
    begun_step = std::max(begun_step, member.said->report.begun_step);
  }
  return begun_step;
}

int64_t Coordinator::BegunStep() const {
  int64_t begun_step = job_->first_step;
  for (const Member& member : members_) {
    begun_step = std::max(begun_step, member.heartbeat.begun_step);
  }
  return begun_step;
}

bool Coordinator::WantsAnotherPlan() {
  return job_->MaySwitchAfter(BegunStep() + 1) && IsSafeToChangePlan() &&
         replanner_.Better(*job_, WorkersHere()).has_value();
}

void Coordinator::OnMeasured(const Member& member, const Measured& measured,
                             absl::Time now, CoordinatorOutbox& out) {
  if (member.id.role != Role::kWorker || state_ != JobState::kRunning) return;
  if (!replanner_.OnMeasured(member.id.rank, measured, *job_, now)) return;
  better_plan_ = WantsAnotherPlan();
  const auto known = replanner_.known(*job_, fusion_.bytes());
  const LinkSpeed& link = known->measured.link;
  out.push_back(Announce{
      false,
      absl::StrFormat("workers have measured: links of %.4g bytes/s, %s a "
                      "frame, %s more for each in a row; %s computing a step; "
                      "%s an iteration, %s predicted",
                      link.rate, absl::FormatDuration(link.latency),
                      absl::FormatDuration(link.message_time),
                      absl::FormatDuration(TotalTime(known->measured.times)),
                      absl::FormatDuration(known->measured.step_time),
                      absl::FormatDuration(known->predicted))});
  if (!better_plan_) TuneFusionAnew(out);
}

void Coordinator::TuneFusionAnew(CoordinatorOutbox& out) {
  const std::optional<int64_t> bytes =
      fusion_.done() ? fusion_.bytes() : fusion_.first();
  if (!fusion_.bytes().has_value()) return;
  const auto better = replanner_.FindBetterFusion(*job_, *bytes);
  if (!better.has_value()) return;
  const auto set = fusion_.Restart(better->bytes, BegunStep());
  TellWorkers(*set, out);
  out.push_back(
      Announce{false, absl::StrCat("tunes fusion from ", better->bytes,
                                   " bytes on: ", better->why)});
}

void Coordinator::OnFusionTimed(const Member& member, const FusionTimed& timed,
                                CoordinatorOutbox& out) {
  if (member.id.role != Role::kWorker) return;
  const std::optional<SetFusion> next = fusion_.OnTimed(member.id.rank, timed);
  if (!next.has_value()) return;
  TellWorkers(*next, out);
  if (!fusion_.done()) return;
  const FusionTuner& tuner = fusion_.tuner();
  out.push_back(Announce{
      false,
      absl::StrCat("fusion of ", tuner.best(), " bytes from step ",
                   next->from_step, " on: an iteration took ",
                   absl::FormatDuration(absl::Seconds(tuner.best_seconds())),
                   ", the least of ", tuner.trials(), " trials")});
}

void Coordinator::TellWorkers(const SetFusion& set,
                              CoordinatorOutbox& out) const {
  for (const Member& member : members_) {
    if (member.id.role == Role::kWorker && member.session.has_value()) {
      out.push_back(SendToMember{*member.session, set});
    }
  }
}

EpochStart Coordinator::StartFor(const Member& member) const {
  EpochStart start;
  start.self = member.id;
  start.from_base = all_from_base_ ||
                    (member.id.role == Role::kWorker &&
                     std::count(workers_from_base_.begin(),
                                workers_from_base_.end(), member.id.rank) > 0);
  start.job = job_;
  start.explanations = explanations_;
  start.epoch_members = epoch_members_;
  start.broken_links = reset_links_;
  return start;
}

void Coordinator::ReleaseLeavers(absl::Time now, CoordinatorOutbox& out) {
  std::vector<PeerId> released;
  for (const Member& leaver : members_) {
    // Still a worker of the epoch: the others have not gone on without it.
    if (!leaver.left.has_value() || job_->PositionOf(leaver.id.rank) >= 0) {
      continue;
    }
    const bool needed =
        std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
          return other.id.role == Role::kWorker && !other.left.has_value() &&
                 !job_->partial() && other.heartbeat.round < *leaver.left;
        });
    if (!needed) released.push_back(leaver.id);
  }
  for (const PeerId id : released) {
    const Member* leaver = Find(id);
    // It may have to be told again.
    released_[leaver->request.incarnation] = now + options_.lease;
    if (leaver->session.has_value()) {
      out.push_back(SendToMember{
          *leaver->session, JobOver{JobState::kFinished, "", saved_round()}});
      out.push_back(EndSession{*leaver->session});
    }
    members_.erase(members_.begin() + (leaver - members_.data()));
  }
}

bool Coordinator::AllLeft() const {
  return Count(Role::kWorker) > 0 &&
         std::all_of(members_.begin(), members_.end(), [](const Member& m) {
           return m.id.role != Role::kWorker || m.left.has_value();
         });
}

int64_t Coordinator::LastStep() const {
  std::optional<int64_t> last;
  for (const Member& member : members_) {
    // Without one of these no round was done.
    if (!member.left.has_value() || job_->PositionOf(member.id.rank) < 0) {
      continue;
    }
    const int64_t step = *member.left;
    last = job_->partial() ? std::max(last.value_or(step), step)
                           : std::min(last.value_or(step), step);
  }
  return last.value_or(kInitialRound);
}

std::optional<int64_t> Coordinator::LastCheckpointToCome() const {
  if (!options_.has_checkpoints) return std::nullopt;
  const int64_t round = LastStep();
  const auto& newest = checkpoints_.newest();
  if (round <= kInitialRound || failed_checkpoints_.contains(round) ||
      (newest.has_value() && newest->round >= round) ||
      (shard_lost_ && !completing_.contains(round))) {
    return std::nullopt;
  }
  return round;
}

std::optional<int32_t> Coordinator::LastSender(int64_t round) const {
  for (const Member& member : members_) {
    if (member.id.role != Role::kWorker || member.told) continue;
    const int position = job_->PositionOf(member.id.rank);
    if (position < 0 || job_->workers[position].first_step > round) continue;
    return member.id.rank;
  }
  return std::nullopt;
}

bool Coordinator::LastCheckpointMayBeLost(int64_t round) const {
  if (restarted_ || target_.has_value()) return true;
  if (job_->partial() && members_lost_) return true;
  const std::optional<int32_t> sender = LastSender(round);
  if (!sender.has_value()) return true;
  const PeerId worker = PeerId::Worker(*sender);
  return std::any_of(
      new_broken_links_.begin(), new_broken_links_.end(),
      [&](const Link& link) {
        return (link.first == worker && link.second.role == Role::kShard) ||
               (link.second == worker && link.first.role == Role::kShard);
      });
}

void Coordinator::AskForLast(int64_t round, CoordinatorOutbox& out) {
  // Without any worker, layers that workers own are lost, others are not.
  const SaveLast last{job_->epoch, round,
                      LastSender(round).value_or(job_->workers.front().rank)};
  for (Member& member : members_) {
    if (!member.session.has_value() || !member.admitted ||
        member.told_last == last) {
      continue;
    }
    member.told_last = last;
    out.push_back(SendToMember{*member.session, last});
  }
}

void Coordinator::FinishIfAllLeft(absl::Time now, CoordinatorOutbox& out) {
  const std::optional<int64_t> checkpoint = LastCheckpointToCome();
  if (checkpoint.has_value()) {
    gives_up_at_ =
        std::min(gives_up_at_, now + (LastCheckpointMayBeLost(*checkpoint)
                                          ? options_.lease
                                          : kLastCheckpointTime));
    if (now < gives_up_at_) return AskForLast(*checkpoint, out);
    CheckpointFailed(*checkpoint, "it was not whole long after all had left",
                     out);
  }
  state_ = JobState::kFinished;
  const int64_t saved = saved_round();
  lacks_last_checkpoint_ = options_.has_checkpoints && saved < LastStep();
  const std::string kept =
      !options_.has_checkpoints
          ? "its parameters are not saved: --checkpoint-dir=DIR keeps them"
      : !lacks_last_checkpoint_
          ? absl::StrCat("its parameters are in the checkpoint of round ",
                         saved)
      : saved > kInitialRound
          ? absl::StrCat(
                "its parameters are NOT SAVED; the last checkpoint that "
                "was made is of round ",
                saved)
          : "its parameters are NOT SAVED; no checkpoint was made";
  out.push_back(
      Announce{saved < LastStep(),
               absl::StrCat("job ", options_.job, " is finished after step ",
                            LastStep(), "; ", kept)});
  out.push_back(SaveState{StateToSave()});
  TellAll(JobOver{state_, "", saved}, out);
}

// Checkpoints.

absl::Status Coordinator::RequestCheckpoint(absl::Time now,
                                            CoordinatorOutbox& out) {
  if (state_ != JobState::kRunning) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", options_.job, " is ", JobStateName(state_), ", not running"));
  }
  if (AllLeft()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", options_.job, " is finished but for its last checkpoint"));
  }
  if (!options_.has_checkpoints) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", options_.job,
                     " has no folder for checkpoints: --checkpoint-dir"));
  }
  // One whose step has begun may be of parameters before this call.
  const bool has_begun =
      std::any_of(members_.begin(), members_.end(), [&](const Member& m) {
        return m.heartbeat.begun_step >= job_->checkpoint_round;
      });
  checkpoint_wanted_again_ |= checkpoint_planned_ && has_begun;
  if (!std::exchange(checkpoint_wanted_, true)) {
    out.push_back(SaveState{StateToSave()});
  }
  Advance(now, out);
  return absl::OkStatus();
}

void Coordinator::OnPart(const Member& member, const CheckpointPart& part,
                         CoordinatorOutbox& out) {
  if (member.id.role != Role::kShard || state_ != JobState::kRunning ||
      part.shard < 0 || part.shard >= options_.shards) {
    return;
  }
  if (!part.error.empty()) {
    return CheckpointFailed(
        part.round,
        absl::StrCat(Describe(member),
                     " could not write its part: ", Printable(part.error)),
        out);
  }
  std::optional<CheckpointRecord> record = checkpoints_.OnPart(*job_, part);
  if (!record.has_value()) return;
  completing_[record->round] = *record;
  out.push_back(CompleteCheckpoint{job_, *std::move(record)});
}

void Coordinator::OnCheckpoint(int64_t round, const absl::Status& written,
                               absl::Time now, CoordinatorOutbox& out) {
  const auto completed = completing_.extract(round);
  if (completed.empty()) return;
  const CheckpointRecord& record = completed.mapped();
  if (!written.ok()) {
    CheckpointFailed(round, std::string(written.message()), out);
  } else {
    checkpoints_.OnComplete(record);
    if (checkpoint_planned_ && round >= job_->checkpoint_round) {
      checkpoint_wanted_ = std::exchange(checkpoint_wanted_again_, false);
      checkpoint_planned_ = false;
    }
    out.push_back(Announce{
        false, absl::StrCat("checkpoint of round ", round, ": ", record.bytes(),
                            " bytes in ", record.files.size(), " files")});
    out.push_back(SaveState{StateToSave()});
  }
  Advance(now, out);
}

void Coordinator::CheckpointFailed(int64_t round, const std::string& why,
                                   CoordinatorOutbox& out) {
  out.push_back(Announce{
      true, absl::StrCat("no checkpoint of round ", round, ": ", why)});
  checkpoint_failure_ = why;
  failed_checkpoints_.insert(round);
  if (failed_checkpoints_.size() > kFailedKept) {
    failed_checkpoints_.erase(failed_checkpoints_.begin());
  }
  // The one that was asked for may still come.
  if (!checkpoint_planned_ || round < job_->checkpoint_round) return;
  checkpoint_wanted_ = std::exchange(checkpoint_wanted_again_, false);
  checkpoint_planned_ = false;
  out.push_back(SaveState{StateToSave()});
}

}  // namespace nereus
