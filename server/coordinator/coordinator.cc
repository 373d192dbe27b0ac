// Read in this order: a process joins or resumes (OnMessage, OnJoin, OnResume,
// Attach), a member sends a message (OnMemberMessage), the coordinator does
// what follows (Advance, BeginEpoch, FinishIfSaved), and members die (Drop,
// DropOverdueMembers).

#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Limit in bytes of a failure's text, which the log and all members get.
constexpr size_t kTextBytesMax = 4096;

// Time between two tries to find an older checkpoint.
constexpr absl::Duration kLookInterval = absl::Seconds(1);

// Returns a text of a member in printable form, without its end if it is long.
std::string ShortText(const std::string& text) {
  return Printable(text.substr(0, kTextBytesMax));
}

// Name of the member, as an operator gives it: the name of a worker, or "shard
// 2".
std::string NameOf(const MemberRecord& member) {
  return member.is_worker() ? member.request.name : member.Name();
}

// True if `name` names the member. "worker a" also names the worker a.
bool IsNamed(const MemberRecord& member, absl::string_view name) {
  return name == NameOf(member) || name == member.Name();
}

// Longest wait for the last checkpoint: longer than any disk takes. If a part
// may be lost, the wait is a lease.
const absl::Duration kLastCheckpointTimeMax = absl::Minutes(30);

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : Coordinator(std::move(options), {}, absl::InfinitePast()) {}

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorState state,
                         absl::Time now)
    : options_(std::move(options)),
      state_(state.state),
      reason_(std::move(state.reason)),
      roster_(state, now, options_.lease()),
      brake_(options_.join_share),
      checkpoints_(std::move(state.checkpoints), state.checkpoint_wanted),
      epochs_(&options_, &roster_, &checkpoints_, std::move(state.epoch),
              std::move(state.hosts), std::move(state.lost_factors)),
      gatherings_(std::move(state.gatherings), job()),
      lobby_(options_.spec.workers, std::move(state.lobby)),
      tally_(job().get()),
      lacks_last_checkpoint_(
          (state_ == JobState::kFinished || state_ == JobState::kStopped) &&
          LacksLastStep()) {}

void Coordinator::Save(CoordinatorOutbox& out) const {
  out.push_back(SaveState{{state_, reason_, epochs_.in_force(), roster_.Saved(),
                           roster_.next_rank(), checkpoints_.state(),
                           checkpoints_.wanted(), epochs_.hosts().state(),
                           gatherings_.state(), lobby_.answers(),
                           epochs_.factors().lost()}});
}

void Coordinator::Note(int64_t round, CheckpointNews news, absl::Time now,
                       CoordinatorOutbox& out) {
  tally_.OnCheckpoint(!news.bad, now);
  out.push_back(
      Announce{news.bad, std::move(news.text), {LogEvent::kCheckpoint, round}});
  if (news.saves) Save(out);
}

// A member that has sent a message lives, whatever the message says.
void Coordinator::OnMessage(SessionId session, const MemberMessage& message,
                            absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  const bool is_first = roster_.NoteMessage(session);
  brake_.NoteMessage(session, now);
  if (lobby_.Has(session) || std::holds_alternative<LobbyGather>(message)) {
    if (is_first || lobby_.Has(session)) OnLobby(session, message, now, out);
  } else if (const auto* join = std::get_if<JoinRequest>(&message)) {
    OnJoin(session, *join, now, out);
  } else if (const auto* resume = std::get_if<Resume>(&message)) {
    OnResume(session, *resume, now, out);
  } else if (MemberRecord* member = roster_.Find(session); member != nullptr) {
    member->times.last_message_at = now;
    member->times.heard_at = now;
    const PeerId id = member->id;
    const absl::Status status =
        over() ? absl::OkStatus() : OnMemberMessage(*member, message, now, out);
    if (!status.ok()) Drop(id, std::string(status.message()), now, out);
  } else if (is_first) {
    Refuse(session,
           FailedPreconditionError("a session must begin with a join "
                                   "or a resumption"),
           out);
  }
  Advance(now, out);
}

JobToJoin Coordinator::Facts() const {
  return {options_, state_, reason_, job().get(), roster_};
}

// The answer is saved before any process hears of it: otherwise a coordinator
// that is restarted could not give it to the others.
void Coordinator::OnLobby(SessionId session, const MemberMessage& message,
                          absl::Time now, CoordinatorOutbox& out) {
  const auto* const gather = std::get_if<LobbyGather>(&message);
  const absl::Status status =
      gather != nullptr ? CheckLobby(*gather, Facts())
                        : InvalidArgumentError(
                              "a session that gathers before the process "
                              "joins can do nothing else");
  if (!status.ok() && lobby_.Has(session)) {
    return lobby_.Refuse(session, status, out);
  }
  if (!status.ok()) return Refuse(session, status, out);
  lobby_.OnGather(session, *gather, /*runs=*/job() != nullptr, now, out);
  if (lobby_.Complete()) Save(out);
  lobby_.Send(out);
}

absl::Status Coordinator::CheckJoin(const JoinRequest& request) const {
  return nereus::CheckJoin(request, Facts());
}

// Makes a claim of the request if a member with a session has the place.
void Coordinator::OnJoin(SessionId session, const JoinRequest& request,
                         absl::Time now, CoordinatorOutbox& out) {
  const MemberRecord* const twice = roster_.Find(session);
  const bool has_joined = twice != nullptr;
  if (has_joined && twice->admitted) {
    return Drop(twice->id, "a session joins once", now, out);
  }
  if (has_joined) roster_.Remove(PeerId(twice->id));
  if (has_joined || outsiders_.EndClaim(session) || brake_.EndWait(session)) {
    return Refuse(session, InvalidArgumentError("a session joins once"), out);
  }
  // This process has joined, but its session broke before it heard of that.
  MemberRecord* const known = roster_.FindIncarnation(request.incarnation);
  if (known != nullptr) {
    const absl::Status same = CheckSameProcess(known->request, request);
    if (!same.ok()) return Refuse(session, same, out);
    return Attach(*known, session, /*epoch=*/0, now, out);
  }
  absl::Status status = CheckJoin(request);
  if (absl::IsAlreadyExists(status)) {
    return outsiders_.AddClaim({session, request, now}, status, out);
  }
  // The new process replaces a member that has the place but no session.
  const MemberRecord* const before = roster_.FindHolder(request);
  if (status.ok() && before != nullptr) {
    Drop(before->id, "another process takes its place", now, out);
    status = CheckJoin(request);  // Drop may have ended the job.
  }
  outsiders_.NoteReturn(request);
  if (!status.ok()) return Refuse(session, std::move(status), out);
  if (WaitOf(request, now) > absl::ZeroDuration()) {
    return brake_.Hold({session, request, now, absl::InfinitePast()}, out);
  }
  if (job() != nullptr) brake_.OnJoin(request, now);
  roster_.Add(request, session, /*running=*/job() != nullptr, now);
  const std::string news = roster_.Find(session)->Describe() + " has joined";
  out.push_back(Announce{false, news, {LogEvent::kMemberJoined}});
}

// A job that lacks workers or a shard makes no steps. Once all workers have
// left, a server can only be one that writes the last checkpoint.
absl::Duration Coordinator::WaitOf(const JoinRequest& request,
                                   absl::Time now) const {
  if (state_ != JobState::kRunning) return absl::ZeroDuration();
  const bool job_waits = request.role == Role::kWorker
                             ? roster_.WorkersHere() < options_.spec.min_workers
                             : roster_.AllLeft() ||
                                   epochs_.Has(ChangeReason::kShardLost) ||
                                   !epochs_.HasEveryShard();
  return brake_.WaitOf(request, job_waits, now);
}

// A silent process may be dead, and would stop the job for a lease.
void Coordinator::AdmitWaiting(absl::Time now, CoordinatorOutbox& out) {
  for (JoinBrake::Newcomer& each : brake_.TakeWaiting()) {
    const bool is_silent = now - each.heard_at > 3 * kHeartbeatInterval;
    if (!over() &&
        (is_silent || WaitOf(each.request, now) > absl::ZeroDuration())) {
      brake_.waiting().push_back(std::move(each));
      continue;
    }
    OnJoin(each.session, each.request, now, out);
  }
}

void Coordinator::TellHeld(absl::Time now, CoordinatorOutbox& out) {
  for (JoinBrake::Newcomer& each : brake_.waiting()) {
    if (now - each.notified_at < options_.waiting_notice_interval) continue;
    const bool is_first = each.notified_at == absl::InfinitePast();
    each.notified_at = now;
    const std::string why = brake_.WhyWait(WaitOf(each.request, now));
    out.push_back(SendToMember{
        each.session,
        Waiting{absl::StrCat("job ", options_.spec.name, " runs, and ",
                             each.request.name, " ", why)}});
    if (!is_first) continue;
    out.push_back(Announce{false,
                           absl::StrCat(each.request.name, " at ",
                                        each.request.data_address, " ", why),
                           {LogEvent::kWaiting}});
  }
}

// A message that comes soon after a claim may have been sent before it.
void Coordinator::SettleClaims(absl::Time now, CoordinatorOutbox& out) {
  for (Outsiders::Claim& claim : outsiders_.TakeClaims()) {
    absl::Status status = CheckJoin(claim.request);
    if (!absl::IsAlreadyExists(status)) {
      OnJoin(claim.session, claim.request, now, out);
      // This is no sign of life: the process may have died since its claim.
      MemberRecord* const joined = roster_.Find(claim.session);
      if (joined != nullptr) joined->times.last_message_at = claim.since;
    } else if (roster_.FindHolder(claim.request)->times.last_message_at >
               claim.since + kHeartbeatInterval) {
      Refuse(claim.session, std::move(status), out);
    } else {
      outsiders_.KeepClaim(std::move(claim));
    }
  }
}

// The process says it is a member of this job, the past job, or another.
void Coordinator::OnResume(SessionId session, const Resume& resume,
                           absl::Time now, CoordinatorOutbox& out) {
  outsiders_.EndClaim(session);
  const bool is_released = resume.job == options_.job_id &&
                           outsiders_.IsReleased(resume.incarnation);
  const auto& past = options_.past_job;
  if (is_released || (past.has_value() && resume.job == past->id)) {
    return TellOver(
        session,
        is_released
            ? JobOver{JobState::kFinished, "", checkpoints_.saved_round()}
            : JobOver{past->state, past->reason, past->saved_round},
        out);
  }
  // Not kCancelled: then the process would join, and the job would begin anew.
  if (resume.job != options_.job_id) {
    return Refuse(
        session,
        DataLossError(
            "this coordinator does not know the job that this process is a "
            "member of: it was started without --state=FILE, or with another "
            "--state or --job-name than that job's, and would begin job ",
            options_.spec.name,
            " anew. The progress of the old job is lost but for its "
            "checkpoints: start all processes again, the coordinator with "
            "--state=FILE, and with --restore=latest if there is a "
            "--checkpoint-dir"),
        out);
  }
  MemberRecord* const member = roster_.Find(resume.member);
  if (member == nullptr || member->request.incarnation != resume.incarnation ||
      !member->admitted) {
    return Refuse(
        session,
        CancelledError("this process was counted as dead, and the job goes on "
                       "without it"),
        out);
  }
  if (resume.epoch > job()->epoch) {
    Fail(absl::StrCat(
             "the coordinator was started with a state of epoch ", job()->epoch,
             ", and a member is in epoch ", resume.epoch,
             ": the --state file is older than the job. Start all processes "
             "again without it",
             checkpoints_.newest().has_value() ? ", and with --restore=latest"
                                               : ""),
         out, JobState::kLost);
  }
  Attach(*member, session, resume.epoch, now, out);
}

void Coordinator::Attach(MemberRecord& member, SessionId session,
                         uint64_t epoch, absl::Time now,
                         CoordinatorOutbox& out) {
  // TellOver has already ended the session of a member that is told_over.
  if (member.session.has_value() && !member.told_over) {
    out.push_back(EndSession{*member.session});
  }
  member.session = session;
  member.save_told.reset();
  member.times.last_message_at = now;
  member.times.heard_at = now;
  member.told_over = over();
  if (over()) {
    TellOver(session, {state_, reason_, checkpoints_.saved_round()}, out);
  } else if (member.admitted) {
    epochs_.Greet(member, epoch, now, out);
  }
}

// Messages of members.

// Heartbeats, reports, Leaves and answers to trials are checked even before the
// job runs. Other messages count only from admitted members of a running job.
absl::Status Coordinator::OnMemberMessage(MemberRecord& member,
                                          const MemberMessage& message,
                                          absl::Time now,
                                          CoordinatorOutbox& out) {
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    NEREUS_TRY(CheckHeartbeat(*heartbeat, job().get()));
    epochs_.OnHeartbeat(member, *heartbeat);
    tally_.OnHeartbeat(member, *heartbeat, now);
    auto stall = member.NoteHeartbeat(*heartbeat, job().get(), now);
    if (stall.has_value()) out.push_back(*std::move(stall));
    return absl::OkStatus();
  }
  if (const auto* report = std::get_if<EpochReport>(&message)) {
    NEREUS_TRY(CheckReport(report->report));
    epochs_.OnReport(member, *report);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    NEREUS_TRY(OnLeave(member, *leave, now, out));
  } else if (const auto* timed = std::get_if<FusionTimed>(&message)) {
    NEREUS_TRY(FusionTuning::Check(*timed));
    if (member.is_worker()) epochs_.OnFusionTimed(member, *timed, out);
  } else if (state_ != JobState::kRunning || !member.admitted) {
    return absl::OkStatus();
  } else if (const auto* measured = std::get_if<Measured>(&message)) {
    NEREUS_TRY(Replanner::Check(*measured, *job()));
    tally_.OnMeasured(member.id, measured->sync_times);
    if (member.is_worker() && epochs_.OnMeasured(member, *measured, now, out)) {
      Save(out);
    }
  } else if (const auto* lost = std::get_if<LostPeer>(&message)) {
    const auto goes = epochs_.OnLostPeer(member, *lost, now, out);
    if (!goes.has_value()) return absl::OkStatus();
    const PeerId stays = *goes == member.id ? lost->peer : member.id;
    Drop(*goes,
         absl::StrCat("it and ", roster_.Find(stays)->Name(),
                      lost->reached ? " cannot keep a connection"
                                    : " have never been connected"),
         now, out);
  } else if (const auto* part = std::get_if<CheckpointPart>(&message)) {
    OnPart(member, *part, now, out);
  } else if (const auto* damaged = std::get_if<CheckpointDamaged>(&message)) {
    OnDamaged(member, *damaged);
  } else if (const auto* ready_to_switch =
                 std::get_if<ReadyToSwitch>(&message)) {
    member.ready_to_switch =
        member.ready_to_switch || ready_to_switch->epoch == job()->epoch;
  } else if (const auto* rows = std::get_if<FactorRows>(&message)) {
    return OnFactorRows(member, *rows, out);
  } else if (const auto* want = std::get_if<WantCheckpoint>(&message)) {
    RequestCheckpoint(now, out, want->begun_step).IgnoreError();
  } else if (const auto* failure = std::get_if<Failure>(&message)) {
    Fail(absl::StrCat(member.Name(), ": ", ShortText(failure->reason)), out);
  } else if (const auto* sums = std::get_if<ReplicaChecksums>(&message)) {
    return OnChecksums(member, *sums, now, out);
  } else if (const auto* gather = std::get_if<Gather>(&message)) {
    NEREUS_TRY(Gatherings::Check(*gather));
    if (member.is_worker()) gatherings_.OnGather(member, *gather, now, out);
  }
  return absl::OkStatus();
}

// The other workers need not wait for a worker before it leaves. A server only
// asks: FindSpareServer.
absl::Status Coordinator::OnLeave(MemberRecord& member, const Leave& leave,
                                  absl::Time now, CoordinatorOutbox& out) {
  NEREUS_TRY(CheckStep("the last step", leave.last_step));
  if (!member.admitted) {
    return InvalidArgumentError(
        "it sent a Leave, which only members of the job may send");
  }
  if (!member.is_worker()) {
    if (!std::exchange(member.leaves_early, true)) {
      out.push_back(
          Announce{false,
                   absl::StrCat(member.Name(), " asks to leave the job"),
                   {.event = LogEvent::kMemberLeft, .member = member.Name()}});
    }
    return absl::OkStatus();
  }
  // The worker sent its Leave before it heard that it must drop its values.
  const bool is_undone = leave.epoch < epochs_.job()->epoch &&
                         epochs_.in_force().IsFromBase(member.id);
  if (is_undone || member.has_left()) return absl::OkStatus();
  member.last_step = leave.last_step;
  member.leaves_early = leave.early;
  out.push_back(
      Announce{false,
               absl::StrCat(member.Name(),
                            leave.early ? " left early, after step "
                                        : " left after its last step, ",
                            leave.last_step),
               {.event = leave.early ? LogEvent::kMemberLeftEarly
                                     : LogEvent::kMemberLeft,
                .step = leave.last_step,
                .member = member.Name()}});
  if (leave.early && state_ == JobState::kRunning) {
    brake_.OnEnd(member, now, now);
  }
  Save(out);
  return absl::OkStatus();
}

absl::Status Coordinator::Drain(absl::string_view name,
                                CoordinatorOutbox& out) const {
  if (state_ != JobState::kRunning) {
    return FailedPreconditionError("the job is ", JobStateName(state_),
                                   ", not running");
  }
  std::vector<std::string> names;
  for (const MemberRecord& member : roster_.members()) {
    names.push_back(NameOf(member));
    if (!IsNamed(member, name)) continue;
    if (!member.admitted) {
      return FailedPreconditionError(member.Name(),
                                     " has not begun yet: end its process");
    }
    if (!member.is_worker() && member.id.rank == options_.own_shard) {
      return FailedPreconditionError(
          member.Name(),
          " is in the process of the coordinator, which cannot "
          "leave; a coordinator with --state can be ended and "
          "started again");
    }
    if (!member.is_worker() && !epochs_.job()->options.backup) {
      return FailedPreconditionError(
          member.Name(),
          " has no backup (--backup=1): without it the job "
          "would have to go back to a checkpoint");
    }
    if (!member.session.has_value()) {
      return UnavailableError(member.Name(), " has no session now: ask again");
    }
    member.Send(AskToLeave{}, out);
    out.push_back(
        Announce{false,
                 absl::StrCat("asks ", member.Name(), " to leave (drain)"),
                 {.event = LogEvent::kMemberLeft, .member = member.Name()}});
    return absl::OkStatus();
  }
  return NotFoundError("the job has no member \"", Printable(name),
                       "\"; its members are ",
                       names.empty() ? "none" : absl::StrJoin(names, ", "));
}

bool Coordinator::HasMember(absl::string_view name) const {
  return absl::c_any_of(roster_.members(), [&](const MemberRecord& member) {
    return !member.has_left() && IsNamed(member, name);
  });
}

MemberRecord* Coordinator::FindSpareServer() {
  if (roster_.AllLeft()) return nullptr;
  for (MemberRecord& member : roster_.members()) {
    if (!member.is_worker() && member.leaves_early &&
        epochs_.HasEveryShard(/*without=*/member.id)) {
      return &member;
    }
  }
  return nullptr;
}

absl::Status Coordinator::OnChecksums(const MemberRecord& member,
                                      const ReplicaChecksums& checksums,
                                      absl::Time now, CoordinatorOutbox& out) {
  std::optional<Announce> differ;
  if (checksums.shard.has_value()) {
    differ = NEREUS_TRY(copies_.OnChecksums(member, checksums, *job()));
  } else {
    differ = NEREUS_TRY(replicas_.OnChecksums(member, checksums, *job(), now));
  }
  FailIf(differ, out);
  return absl::OkStatus();
}

absl::Status Coordinator::OnFactorRows(const MemberRecord& member,
                                       const FactorRows& rows,
                                       CoordinatorOutbox& out) {
  NEREUS_TRY(CheckFactorRows(rows, job()->model()));
  const bool saves =
      member.is_worker() && epochs_.OnFactorRows(member, rows, out);
  if (saves) Save(out);
  return absl::OkStatus();
}

// The manifest makes a checkpoint valid, so it follows the last part.
void Coordinator::OnPart(const MemberRecord& member, const CheckpointPart& part,
                         absl::Time now, CoordinatorOutbox& out) {
  if (member.is_worker() || part.shard < 0 ||
      part.shard >= options_.spec.shards) {
    return;
  }
  if (!part.error.empty()) {
    if (!checkpoints_.Counts(*job(), part)) return;
    const std::string why =
        absl::StrCat(member.Describe(),
                     " could not write its part: ", Printable(part.error));
    return Note(part.round, checkpoints_.OnFailure(part.round, why, *job()),
                now, out);
  }
  auto record = checkpoints_.OnPart(*job(), part);
  if (!record.has_value()) return;
  out.push_back(CompleteCheckpoint{job(), *std::move(record),
                                   WorkerSettings(roster_),
                                   checkpoints_.state().restarted_in});
}

// A message of another epoch is about a checkpoint from which the job does not
// go on any more. The server has no values, so its shards are lost.
void Coordinator::OnDamaged(const MemberRecord& member,
                            const CheckpointDamaged& damaged) {
  if (member.is_worker() || damaged.epoch != job()->epoch ||
      damaged.round != job()->history.base_round ||
      damaged.round == kInitialRound) {
    return;
  }
  epochs_.NoteDamaged();
  const bool is_set_aside = damaged.round != checkpoints_.saved_round();
  if (is_set_aside) return;
  checkpoints_.OnDamaged(damaged.round,
                         absl::StrCat(ShortText(damaged.reason), " (found by ",
                                      member.Describe(), ")"));
}

void Coordinator::OnSetAside(int64_t round,
                             const absl::StatusOr<CheckpointSetAside>& outcome,
                             absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  if (over() || checkpoints_.setting_aside() != round) return;
  if (!outcome.ok()) {
    looks_again_at_ = now + kLookInterval;
    out.push_back(Announce{
        true,
        absl::StrCat("the checkpoint of round ", round,
                     " is damaged, and an older one cannot be found yet: ",
                     outcome.status().message()),
        {LogEvent::kCheckpoint, round}});
    return;
  }
  if (!outcome->older.has_value()) {
    return Fail(
        absl::StrCat("no checkpoint is left to go on from: all are damaged, ",
                     checkpoints_.DescribeDamaged(),
                     outcome->unusable.empty() ? "" : "; also those of rounds ",
                     absl::StrJoin(outcome->unusable, ", ")),
        out, JobState::kLost);
  }
  CheckpointNews news = checkpoints_.OnSetAside(*outcome);
  out.push_back(
      Announce{true, std::move(news.text), {LogEvent::kCheckpoint, round}});
  Save(out);
  Advance(now, out);
}

// The member has reconnect_grace to resume in another session.
void Coordinator::OnSessionEnd(SessionId session, absl::Time now,
                               CoordinatorOutbox& out) {
  NoticePause(now);
  roster_.NoteEnd(session);
  outsiders_.EndClaim(session);
  brake_.EndWait(session);
  lobby_.OnSessionEnd(session);
  MemberRecord* const member = roster_.Find(session);
  if (member == nullptr) return;
  member->session.reset();
  member->times.dead_after = now + options_.reconnect_grace;
  if (!member->admitted) {
    const PeerId id = member->id;
    roster_.Remove(id);
    tally_.OnGone(id);  // Another worker may get this rank.
  }
  Advance(now, out);
}

bool Coordinator::FailIf(const std::optional<Announce>& reason,
                         CoordinatorOutbox& out) {
  if (!reason.has_value()) return false;
  out.push_back(*reason);
  Fail(reason->text, out);
  return true;
}

// Runs after every event: each step may make the next one possible.
void Coordinator::Advance(absl::Time now, CoordinatorOutbox& out) {
  SettleClaims(now, out);
  AdmitWaiting(now, out);
  if (state_ == JobState::kWaiting &&
      roster_.Count(Role::kWorker) == options_.spec.workers &&
      roster_.Count(Role::kShard) == options_.spec.shards) {
    const absl::Status started = epochs_.StartJob(out);
    if (!started.ok()) return Fail(std::string(started.message()), out);
    state_ = JobState::kRunning;
    lobby_.RefuseWaiting(out);
    AnnounceEpoch(*job(), DescribePlan(*job()), out);
    BeginEpoch(now, out);
  }
  if (state_ != JobState::kRunning) return;
  // No report follows the last Leave.
  const absl::Time due = roster_.AllLeft() ? absl::InfiniteFuture() : now;
  if (FailIf(replicas_.Settle(due, *job()), out)) return;
  if (roster_.AllLeft()) {
    FinishIfSaved(now, out);
    if (over() || !LacksServer(*job(), roster_) || !DropGone(roster_)) return;
  }
  const int64_t saved = checkpoints_.saved_round();
  while (MemberRecord* const server = FindSpareServer()) {
    outsiders_.Release(*server, saved, out);
    Remove(*server, now, out);
  }
  for (const PeerId leaver :
       outsiders_.ReleaseLeavers(*job(), saved, roster_, out)) {
    tally_.OnGone(leaver);
    epochs_.ForgetLinks(leaver);
  }
  if (Stands()) brake_.Excuse(now);
  const absl::StatusOr<bool> begins = epochs_.Advance(now, out);
  if (!begins.ok()) {
    return Fail(std::string(begins.status().message()), out, JobState::kLost);
  }
  if (*begins) BeginEpoch(now, out);
  if (gatherings_.Complete(*job(), roster_)) Save(out);
  gatherings_.Send(roster_, out);
}

// The state is saved before any member hears of the epoch.
void Coordinator::BeginEpoch(absl::Time now, CoordinatorOutbox& out) {
  // Checksums of a round may be out of date: workers may do it again, with
  // other contributors (simulation seeds 6040 and 12335). As workers enter the
  // epoch, they report the checksums of their last done round again. A
  // difference between two reports of the old epoch is none of these.
  const auto difference =
      replicas_.Settle(absl::InfiniteFuture(), *epochs_.job());
  if (FailIf(difference, out)) return;
  replicas_.Clear();
  if (epochs_.in_force().all_from_base) {
    gatherings_.Clear(job()->epoch);
    copies_.Clear(job()->epoch);
  }
  tally_.OnEpoch(*job(), now);
  brake_.OnEpoch(roster_, now);
  epochs_.AdmitAll(now);
  Save(out);
  epochs_.TellAll(out);
}

// Once the wait is over, the job finishes even without its last checkpoint.
void Coordinator::FinishIfSaved(absl::Time now, CoordinatorOutbox& out) {
  const auto awaited = AwaitedRound();
  if (awaited.has_value()) {
    if (AskToSave(*awaited, now, out)) return;
    Note(*awaited,
         checkpoints_.OnFailure(*awaited, "its parts did not arrive in time",
                                *job()),
         now, out);
  }
  const bool stops = absl::c_all_of(roster_.members(), [](const auto& member) {
    return !member.is_worker() || member.leaves_early;
  });
  state_ = stops ? JobState::kStopped : JobState::kFinished;
  lacks_last_checkpoint_ = LacksLastStep();
  const int64_t saved = checkpoints_.saved_round();
  const auto end = DescribeEnd();
  if (stops) reason_ = end;
  out.push_back(Announce{
      stops || saved < LastStep(), end, {LogEvent::kJobState, LastStep()}});
  Save(out);
  roster_.EndForAll(JobOver{state_, reason_, saved}, out);
  lobby_.RefuseAll(CheckNotOver(Facts()), out);
}

absl::Status Coordinator::RequestCheckpoint(absl::Time now,
                                            CoordinatorOutbox& out,
                                            int64_t begun_step) {
  std::string why;
  if (state_ != JobState::kRunning) {
    why = absl::StrCat("is ", JobStateName(state_), ", not running");
  } else if (roster_.AllLeft()) {
    why = "is finished except for its last checkpoint";
  } else if (!options_.has_checkpoints) {
    why = "has no folder for checkpoints (--checkpoint-dir)";
  }
  if (!why.empty()) {
    return FailedPreconditionError("job ", options_.spec.name, " ", why);
  }
  // A checkpoint of a begun round may have parameters from before the request.
  begun_step = roster_.BegunStep(begun_step);
  if (checkpoints_.Request(begun_step >= job()->checkpoint_round)) Save(out);
  Advance(now, out);
  return absl::OkStatus();
}

void Coordinator::OnCheckpoint(int64_t round, const absl::Status& written,
                               absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  if (auto abandoned = checkpoints_.TakeAbandoned(round)) {
    out.push_back(Announce{
        true,
        absl::StrCat("the manifest of round ", round,
                     " comes too late: ", "the job has gone back without it"),
        {LogEvent::kCheckpoint, round}});
    // After an error it may be on the disk, too.
    out.push_back(DropManifest{*std::move(abandoned)});
    return;
  }
  if (!checkpoints_.IsCompleting(round)) return;
  Note(round, checkpoints_.OnWritten(round, written, *job()), now, out);
  Advance(now, out);
}

void Coordinator::Fail(const std::string& reason, CoordinatorOutbox& out,
                       JobState state) {
  if (over()) return;
  state_ = state;
  reason_ = reason;  // The first failure, as it may have caused later ones.
  if (job() != nullptr || !lobby_.answers().empty()) Save(out);
  roster_.EndForAll(JobOver{state_, reason_, checkpoints_.saved_round()}, out);
  lobby_.RefuseAll(CheckNotOver(Facts()), out);
}

// Time, and death.

void Coordinator::OnTick(absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  outsiders_.Forget(now);
  brake_.DropSilent(options_.lease(), now, out);
  if (!over()) DropOverdueMembers(now, out);
  if (now >= looks_again_at_) {
    looks_again_at_ = absl::InfiniteFuture();
    checkpoints_.EndLook();
  }
  if (over()) roster_.NoteGone(now);
  Advance(now, out);
  if (job() != nullptr) {
    tally_.OnTick(epochs_.BegunStep(), now);
    gatherings_.SendNotices(*job(), roster_, now, out);
  }
  lobby_.SendNotices(roster_, now, out);
  TellWaiting(now, out);
  TellHeld(now, out);
}

// For a reason that no newcomer has made.
bool Coordinator::Stands() const {
  return roster_.WorkersHere() < options_.spec.min_workers ||
         epochs_.Has(ChangeReason::kShardLost) ||
         epochs_.Has(ChangeReason::kCoordinatorRestarted);
}

void Coordinator::NoticePause(absl::Time now) {
  const absl::Duration pause = roster_.NoticePause(now);
  outsiders_.Delay(pause);
  brake_.Delay(pause);
  gives_up_at_ += pause;
  epochs_.Delay(pause);
}

// The last checkpoint.

int64_t Coordinator::LastStep() const {
  const Job& job = *epochs_.job();
  std::optional<int64_t> last;
  for (const MemberRecord& member : roster_.members()) {
    // Skips workers that left before the epoch began.
    if (!member.has_left() || job.PositionOf(member.id.rank) < 0) continue;
    const int64_t step = *member.last_step;
    last = job.partial() ? std::max(last.value_or(step), step)
                         : std::min(last.value_or(step), step);
  }
  return last.value_or(kInitialRound);
}

bool Coordinator::LacksLastStep() const {
  return options_.has_checkpoints && checkpoints_.saved_round() < LastStep();
}

// If a shard is lost, the job goes back to its newest checkpoint, and waits for
// one that lacks only its manifest.
std::optional<int64_t> Coordinator::AwaitedRound() const {
  if (!options_.has_checkpoints) return std::nullopt;
  const int64_t round = LastStep();
  const bool is_lost = epochs_.Has(ChangeReason::kShardLost) &&
                       !checkpoints_.newest().has_value() &&
                       !checkpoints_.IsCompleting(round);
  if (round <= kInitialRound || checkpoints_.HasFailed(round) ||
      checkpoints_.saved_round() >= round || is_lost) {
    return std::nullopt;
  }
  return round;
}

std::optional<int32_t> Coordinator::LastSender(int64_t round) const {
  const Job& job = *epochs_.job();
  for (const MemberRecord& member : roster_.members()) {
    if (!member.is_worker() || member.told_over) continue;
    const int position = job.PositionOf(member.id.rank);
    if (position < 0 || job.workers[position].first_step > round) continue;
    return member.id.rank;
  }
  return std::nullopt;
}

// Frames with worker-owned layers are lost if their connection breaks or their
// sender dies.
bool Coordinator::MayBeLost(int64_t round) const {
  const Job& job = *epochs_.job();
  if (epochs_.Has(ChangeReason::kCoordinatorRestarted) ||
      epochs_.target().has_value() ||
      (job.partial() && epochs_.Has(ChangeReason::kMemberLost))) {
    return true;
  }
  const std::optional<int32_t> sender = LastSender(round);
  if (!sender.has_value()) return true;
  const PeerId worker = PeerId::Worker(*sender);
  const auto& broken = epochs_.links().of_epoch();
  return absl::c_any_of(broken, [&](const PeerPair& link) {
    return (link.first == worker && link.second.role == Role::kShard) ||
           (link.second == worker && link.first.role == Role::kShard);
  });
}

bool Coordinator::AskToSave(int64_t round, absl::Time now,
                            CoordinatorOutbox& out) {
  const uint64_t epoch = epochs_.job()->epoch;
  if (std::exchange(asked_to_save_in_, epoch) != epoch) {
    gives_up_at_ = absl::InfiniteFuture();
  }
  // A server that was lost may be started again.
  const bool may_be_lost =
      !LacksServer(*epochs_.job(), roster_) && MayBeLost(round);
  gives_up_at_ =
      std::min(gives_up_at_,
               now + (may_be_lost ? options_.lease() : kLastCheckpointTimeMax));
  if (now >= gives_up_at_) return false;
  const Job& job = *epochs_.job();
  // If all workers are gone, names the first one, which cannot send: the
  // worker-owned layers are lost.
  const SaveLast last{job.epoch, round,
                      LastSender(round).value_or(job.workers.front().rank)};
  for (MemberRecord& member : roster_.members()) {
    if (!member.session.has_value() || !member.admitted ||
        member.save_told == last) {
      continue;
    }
    member.save_told = last;
    member.Send(last, out);
  }
  return true;
}

// Works on a copy of the ids, because Drop removes members from the list.
void Coordinator::DropOverdueMembers(absl::Time now, CoordinatorOutbox& out) {
  std::vector<PeerId> ids;
  for (const MemberRecord& member : roster_.members()) ids.push_back(member.id);
  for (const PeerId id : ids) {
    const MemberRecord* const member = roster_.Find(id);
    if (over()) return;
    if (member == nullptr) continue;
    const std::string why =
        member->WhyDead(options_.lease(), epochs_.target().has_value(), now);
    if (why.empty()) continue;
    if (member->IsSilent(options_.lease(), now)) {
      outsiders_.NoteSilent(id, member->request.name, now);
    }
    Drop(id, why, now, out);
  }
}

// The member is not in the next epoch. If it was the last server with the
// values of a shard, the job goes back to a checkpoint or fails.
void Coordinator::Drop(PeerId id, const std::string& why, absl::Time now,
                       CoordinatorOutbox& out) {
  MemberRecord* const member = roster_.Find(id);
  if (member == nullptr) return;
  const auto text = absl::StrCat(member->Describe(), " was removed: ", why);
  out.push_back(Announce{
      true, text, {.event = LogEvent::kMemberLost, .member = member->Name()}});
  if (member->admitted) tally_.OnDead(*member);
  if (member->session.has_value()) {
    Refuse(*member->session,
           CancelledError(member->Name(), " was counted as dead: ", why), out);
  }
  const std::string lost = Remove(*member, now, out);
  if (!lost.empty()) Fail(absl::StrCat(text, lost), out, JobState::kLost);
}

std::string Coordinator::Remove(MemberRecord& member, absl::Time now,
                                CoordinatorOutbox& out) {
  const PeerId id = member.id;
  const bool takes_part = state_ == JobState::kRunning && member.admitted;
  if (takes_part) epochs_.NoteLost(member);
  if (takes_part && !member.has_left()) {
    brake_.OnEnd(member, member.times.heard_at, now);
  }
  if (takes_part && roster_.AllLeft() && member.has_left()) {
    // All workers have left: LastStep needs this leaver in the list.
    member.session.reset();
    member.told_over = true;
    return "";
  }
  roster_.Remove(id);
  tally_.OnGone(id);
  epochs_.ForgetLinks(id);
  const bool goes_on =
      !takes_part || id.role != Role::kShard || epochs_.OnServerLost(id, out);
  return goes_on ? "" : ", and there is no checkpoint to go on from";
}

}  // namespace nereus
