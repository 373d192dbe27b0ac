#include "server/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "server/coordinator/join_rules.h"

namespace nereus {
namespace {

// Text of a stall or a failure, for the log's sake.
constexpr size_t kTextBytesMax = 4096;

// Two members that lose each other so often in this time are not both kept.
constexpr size_t kLossesMax = 3;
const absl::Duration kLossWindow = absl::Minutes(1);

// How long a coordinator that ends has in mind who stood still.
const absl::Duration kSilentKept = absl::Minutes(1);

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      fusion_(options_.job_options.tune_fusion,
              options_.job_options.fusion_bytes),
      replanner_(RulesFor(options_.job_options, options_.rules),
                 options_.replan_interval) {}

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorState state,
                         absl::Time now)
    : options_(std::move(options)),
      state_(state.state),
      reason_(std::move(state.reason)),
      next_rank_(state.next_rank),
      job_(std::move(state.job)),
      explanations_(std::move(state.explanations)),
      last_target_(job_->epoch),
      epoch_members_(std::move(state.epoch_members)),
      reset_links_(std::move(state.reset_links)),
      workers_from_base_(std::move(state.workers_from_base)),
      all_from_base_(state.all_from_base),
      restarted_(true),
      awake_(now),
      fusion_(options_.job_options.tune_fusion,
              options_.job_options.fusion_bytes),
      replanner_(RulesFor(options_.job_options, options_.rules),
                 options_.replan_interval),
      checkpoints_(std::move(state.checkpoints)),
      checkpoint_wanted_(state.checkpoint_wanted) {
  for (CoordinatorState::Member& saved : state.members) {
    Member member;
    member.id = saved.id;
    member.request = std::move(saved.request);
    member.last_message_at = now;
    member.heard = now;
    member.missed_after = now + options_.lease;
    member.noticed = now;
    member.admitted = true;
    if (saved.left) member.left = saved.last_step;
    members_.push_back(std::move(member));
  }
  shard_lost_ = !EveryShardHasHolder();
}

CoordinatorState Coordinator::StateToSave() const {
  CoordinatorState state;
  state.state = state_;
  state.reason = reason_;
  state.job = job_;
  state.explanations = explanations_;
  for (const Member& member : members_) {
    if (!member.admitted) continue;
    CoordinatorState::Member saved{member.id, member.request,
                                   member.left.has_value(),
                                   member.left.value_or(kInitialRound)};
    saved.request.layers.clear();
    state.members.push_back(std::move(saved));
  }
  state.next_rank = next_rank_;
  state.epoch_members = epoch_members_;
  state.all_from_base = all_from_base_;
  state.workers_from_base = workers_from_base_;
  state.reset_links = reset_links_;
  state.checkpoints = checkpoints_.state();
  state.checkpoint_wanted = checkpoint_wanted_;
  return state;
}

int Coordinator::Count(Role role) const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(),
                    [&](const Member& m) { return m.id.role == role; }));
}

int Coordinator::WorkersHere() const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(), [](const Member& m) {
        return m.id.role == Role::kWorker && !m.left.has_value();
      }));
}

Coordinator::Member* Coordinator::Find(SessionId session) {
  for (Member& member : members_) {
    if (member.session == session) return &member;
  }
  return nullptr;
}

Coordinator::Member* Coordinator::Find(PeerId id) {
  for (Member& member : members_) {
    if (member.id == id) return &member;
  }
  return nullptr;
}

Coordinator::Member* Coordinator::FindHolder(const JoinRequest& request) {
  if (request.role == Role::kShard) return Find(PeerId::Shard(request.shard));
  for (Member& member : members_) {
    if (member.id.role == Role::kWorker && !member.left.has_value() &&
        member.request.name == request.name) {
      return &member;
    }
  }
  return nullptr;
}

absl::Status Coordinator::CheckPlace(const JoinRequest& request) const {
  if (request.role == Role::kWorker) {
    if (next_rank_ >= kRanksMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "job ", options_.job, " has given out all ", kRanksMax, " ranks"));
    }
    if (job_ != nullptr && AllLeft()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", options_.job, " is finished but for its last checkpoint"));
    }
    const Member* const holder = FindHolder(request);
    if (holder != nullptr && !IsAway(*holder)) {
      return absl::AlreadyExistsError(absl::StrCat(
          request.name, " is the name of a worker at ",
          holder->request.data_address, "; --name gives each worker its own"));
    }
    const int most =
        job_ == nullptr ? options_.workers : options_.workers_max();
    const int others = WorkersHere() - (holder != nullptr ? 1 : 0);
    if (others < most) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("job ", options_.job, " has all its ", most, " workers; ",
                     request.name, " would be one too many"));
  }
  if (request.shard < 0 || request.shard >= options_.shards) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.name, " says it is shard ", request.shard,
                     " of a job with ", options_.shards, " shards"));
  }
  const Member* const holder = FindHolder(request);
  if (holder == nullptr || IsAway(*holder)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      request.name, " says it is shard ", request.shard, ", which is ",
      holder->request.name, " at ", holder->request.data_address,
      "; --shard gives each server its own"));
}

absl::Status Coordinator::CheckJoin(const JoinRequest& request) const {
  // First of all, since messages repeat them.
  NEREUS_RETURN_IF_ERROR(CheckTexts(request));
  NEREUS_RETURN_IF_ERROR(CheckBuild(request));
  if (request.job != options_.job) {
    return absl::NotFoundError(
        absl::StrCat(request.name, " asks for job \"", request.job,
                     "\", this coordinator serves job \"", options_.job, "\""));
  }
  if (state_ == JobState::kFailed) {
    return absl::AbortedError(
        absl::StrCat("job ", options_.job, " has failed: ", reason_));
  }
  if (state_ == JobState::kFinished) {
    return absl::OutOfRangeError(
        absl::StrCat("job ", options_.job, " is finished"));
  }
  JoinRules rules{options_, job_.get(), {}};
  for (const Member& member : members_) {
    if (member.id.role != Role::kWorker) continue;
    rules.workers.push_back({NameOf(member), &member.request});
  }
  NEREUS_RETURN_IF_ERROR(rules.CheckSettings(request));
  NEREUS_RETURN_IF_ERROR(CheckPlace(request));
  return request.role == Role::kWorker ? rules.CheckModel(request)
                                       : rules.CheckFolder(request);
}

void Coordinator::OnMessage(SessionId session, const MemberMessage& message,
                            absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  const bool begins = std::holds_alternative<JoinRequest>(message) ||
                      std::holds_alternative<Resume>(message);
  const bool begun = !spoken_.insert(session).second;
  if (const auto* join = std::get_if<JoinRequest>(&message)) {
    OnJoin(session, *join, now, out);
  } else if (const auto* resume = std::get_if<Resume>(&message)) {
    OnResume(session, *resume, now, out);
  } else if (Member* member = Find(session); member != nullptr) {
    member->last_message_at = now;
    member->heard = now;
    if (!over()) OnMemberMessage(*member, message, now, out);
  } else if (!begun && !begins) {
    Refuse(session,
           absl::FailedPreconditionError("a session begins with a join or a "
                                         "resumption"),
           out);
  }
  Advance(now, out);
}

void Coordinator::OnJoin(SessionId session, const JoinRequest& request,
                         absl::Time now, CoordinatorOutbox& out) {
  if (Member* twice = Find(session); twice != nullptr) {
    const absl::Status why = absl::InvalidArgumentError("a session joins once");
    if (twice->admitted)
      return Drop(twice->id, std::string(why.message()), out);
    members_.erase(members_.begin() + (twice - members_.data()));
    return Refuse(session, why, out);
  }
  const auto is_its = [&](const Claim& c) { return c.session == session; };
  if (std::erase_if(claims_, is_its) > 0) {
    return Refuse(session, absl::InvalidArgumentError("a session joins once"),
                  out);
  }
  // A member whose session broke before it heard that it is one.
  for (Member& member : members_) {
    if (member.request.incarnation != request.incarnation) continue;
    return Attach(member, session, /*epoch=*/0, now, out);
  }
  absl::Status status = CheckJoin(request);
  if (absl::IsAlreadyExists(status)) {
    out.push_back(SendToMember{
        session, Waiting{absl::StrCat(status.message(),
                                      ": waiting to see if that process is "
                                      "dead")}});
    // The process itself, whose session broke before.
    std::erase_if(claims_, [&](const Claim& claim) {
      if (claim.request.incarnation != request.incarnation) return false;
      out.push_back(EndSession{claim.session});
      return true;
    });
    claims_.push_back({session, request, now});
    return;
  }
  // One that has lost its session, and is back before that counts as its death.
  const Member* const before = FindHolder(request);
  if (status.ok() && before != nullptr) {
    Drop(before->id, "another process comes in its place", out);
    status = CheckJoin(request);  // The job may have failed with that.
  }
  if (status.ok() || absl::IsOutOfRange(status)) {
    std::erase_if(silent_, [&](const auto& entry) {
      const Member& silent = entry.first;
      return request.role == Role::kShard
                 ? silent.id == PeerId::Shard(request.shard)
                 : silent.id.role == request.role &&
                       silent.request.name == request.name;
    });
  }
  if (!status.ok()) return Refuse(session, std::move(status), out);
  Member member;
  member.request = request;
  member.id = PeerId::Shard(request.shard);
  if (request.role == Role::kWorker) member.id = PeerId::Worker(FreeRank());
  member.session = session;
  member.last_message_at = now;
  member.heard = now;
  member.noticed = absl::InfinitePast();
  members_.push_back(std::move(member));
}

void Coordinator::OnResume(SessionId session, const Resume& resume,
                           absl::Time now, CoordinatorOutbox& out) {
  std::erase_if(claims_, [&](const Claim& c) { return c.session == session; });
  Member* member = Find(resume.member);
  if (resume.job == options_.job_id && released_.contains(resume.incarnation)) {
    out.push_back(
        SendToMember{session, JobOver{JobState::kFinished, "", saved_round()}});
    out.push_back(EndSession{session});
    return;
  }
  if (const auto& past = options_.past_job;
      past.has_value() && resume.job == past->id) {
    out.push_back(SendToMember{
        session, JobOver{past->state, past->reason, past->saved_round}});
    out.push_back(EndSession{session});
    return;
  }
  // Not kCancelled: a process that joined again would begin the job anew.
  if (resume.job != options_.job_id) {
    return Refuse(
        session,
        absl::FailedPreconditionError(absl::StrCat(
            "this coordinator does not know the job that this process is a "
            "member of: it was started without the job's --state=FILE and "
            "would begin job ",
            options_.job,
            " anew. The progress of the old job is lost but for its "
            "checkpoints: start all processes again, the coordinator with "
            "--state=FILE, and with --restore=latest if there is a "
            "--checkpoint-dir")),
        out);
  }
  if (member == nullptr || member->request.incarnation != resume.incarnation ||
      !member->admitted) {
    return Refuse(session,
                  absl::CancelledError(
                      "this process was counted as dead, and the job goes on "
                      "without it"),
                  out);
  }
  if (resume.epoch > job_->epoch) OnNewerMember(resume.epoch, out);
  Attach(*member, session, resume.epoch, now, out);
}

void Coordinator::OnNewerMember(uint64_t epoch, CoordinatorOutbox& out) {
  Fail(absl::StrCat(
           "the coordinator was started with a state of epoch ", job_->epoch,
           ", and a member is in epoch ", epoch,
           ": the --state file is older than the job. Start all processes "
           "again without it",
           checkpoints_.newest().has_value() ? ", and with --restore=latest"
                                             : ""),
       out);
}

void Coordinator::Attach(Member& member, SessionId session, uint64_t epoch,
                         absl::Time now, CoordinatorOutbox& out) {
  // One that has heard the end has had its session ended with that.
  if (member.session.has_value() && !member.told) {
    out.push_back(EndSession{*member.session});
  }
  member.session = session;
  member.told_last.reset();
  member.last_message_at = now;
  member.heard = now;
  if (over()) {
    out.push_back(
        SendToMember{session, JobOver{state_, reason_, saved_round()}});
    out.push_back(EndSession{session});
    member.told = true;
    return;
  }
  member.told = false;  // It was taken for gone.
  if (!member.admitted) return;
  if (epoch < job_->epoch) {
    out.push_back(SendToMember{session, StartFor(member)});
  }
  if (fusion_.told().has_value() && member.id.role == Role::kWorker) {
    out.push_back(SendToMember{session, *fusion_.told()});
  }
  if (target_.has_value()) {
    member.asked_at = now;
    out.push_back(SendToMember{session, PrepareEpoch{*target_}});
  }
}

void Coordinator::OnMemberMessage(Member& member, const MemberMessage& message,
                                  absl::Time now, CoordinatorOutbox& out) {
  absl::Status status;
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    status = CheckStep("the step", heartbeat->begun_step);
    status.Update(CheckStep("the round", heartbeat->round));
    status.Update(CheckStall(*heartbeat));
    if (status.ok()) OnHeartbeat(member, *heartbeat, out);
  } else if (const auto* report = std::get_if<EpochReport>(&message)) {
    status = CheckReport(report->report);
    const bool current = report->target == target_ && job_ != nullptr &&
                         report->epoch == job_->epoch;
    if (status.ok() && current) member.said = *report;
  } else if (const auto* lost = std::get_if<LostPeer>(&message)) {
    OnLostPeer(member, *lost, now, out);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    status = CheckStep("the last step", leave->last_step);
    if (member.left.has_value()) return;  // Said again in a new session.
    if (!status.ok() || !member.admitted || member.id.role != Role::kWorker) {
      return Drop(member.id, "it left without being a worker", out);
    }
    member.left = leave->last_step;
    out.push_back(SaveState{StateToSave()});
    out.push_back(Announce{
        false, absl::StrCat(NameOf(member), " has left, its work done")});
  } else if (const auto* part = std::get_if<CheckpointPart>(&message)) {
    OnPart(member, *part, out);
  } else if (const auto* timed = std::get_if<FusionTimed>(&message)) {
    status = FusionTuning::Check(*timed);
    if (status.ok()) OnFusionTimed(member, *timed, out);
  } else if (const auto* drained = std::get_if<Drained>(&message)) {
    if (job_ != nullptr && drained->epoch == job_->epoch) member.drained = true;
  } else if (const auto* measured = std::get_if<Measured>(&message)) {
    if (job_ == nullptr || !member.admitted) return;
    status = Replanner::Check(*measured, *job_);
    if (status.ok()) OnMeasured(member, *measured, now, out);
  } else if (std::holds_alternative<WantCheckpoint>(message)) {
    if (member.admitted) RequestCheckpoint(now, out).IgnoreError();
    return;  // The members may have changed.
  } else if (const auto* sums = std::get_if<ReplicaChecksums>(&message)) {
    return OnChecksums(member, *sums, out);
  } else if (const auto* failure = std::get_if<Failure>(&message);
             failure != nullptr && member.admitted) {
    Fail(absl::StrCat(NameOf(member), ": ",
                      Printable(failure->reason.substr(0, kTextBytesMax))),
         out);
  }
  if (status.ok()) return;
  Drop(member.id, std::string(status.message()), out);
}

void Coordinator::OnChecksums(const Member& member,
                              const ReplicaChecksums& checksums,
                              CoordinatorOutbox& out) {
  // Of another epoch: some rounds may have been done again since.
  if (state_ != JobState::kRunning || member.id.role != Role::kWorker ||
      !member.admitted || checksums.epoch != job_->epoch) {
    return;
  }
  const absl::Status same =
      replicas_.OnChecksums(NameOf(member), checksums, *job_);
  if (absl::IsInvalidArgument(same)) {
    Drop(member.id, std::string(same.message()), out);
  } else if (!same.ok()) {
    Fail(std::string(same.message()), out);
  }
}

absl::Status Coordinator::CheckStall(const Heartbeat& heartbeat) const {
  if (!heartbeat.stall.has_value()) return absl::OkStatus();
  const Stall& stall = *heartbeat.stall;
  NEREUS_RETURN_IF_ERROR(CheckStep("the stalled round", stall.round));
  if (job_ != nullptr && stall.layer >= 0 &&
      stall.layer < static_cast<int64_t>(job_->layers.size()) &&
      stall.missing.size() <= kTextBytesMax &&
      stall.waited > absl::ZeroDuration()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a member reports that layer ", stall.layer, " has waited ",
      absl::FormatDuration(stall.waited), ": no such layer, no time, or ",
      stall.missing.size(), " bytes of why"));
}

void Coordinator::OnHeartbeat(Member& member, const Heartbeat& heartbeat,
                              CoordinatorOutbox& out) {
  NoteWholeCopies(member, heartbeat);
  const std::optional<Stall> before =
      std::exchange(member.heartbeat, heartbeat).stall;
  if (!heartbeat.stall.has_value()) return;
  const Stall& stall = *heartbeat.stall;
  // Once as it begins, and again when it has lasted twice as long.
  if (before.has_value() && before->layer == stall.layer &&
      before->round == stall.round && stall.waited < member.stall_told * 2) {
    return;
  }
  member.stall_told = stall.waited;
  out.push_back(Announce{
      true, absl::StrCat("layer ", job_->layers[stall.layer].name, ", round ",
                         stall.round, " has waited ",
                         absl::FormatDuration(stall.waited), " at ",
                         NameOf(member), " for ", Printable(stall.missing))});
}

void Coordinator::OnLostPeer(const Member& member, const LostPeer& lost,
                             absl::Time now, CoordinatorOutbox& out) {
  const Member* peer = Find(lost.peer);
  if (peer == nullptr || lost.peer == member.id || !peer->admitted ||
      !member.admitted || state_ != JobState::kRunning) {
    return;
  }
  // Those in this epoch have made a new one, or will lose theirs in it too.
  if (lost.epoch != job_->epoch) return;
  // If that is not the peer's death, the next epoch's line says so.
  out.push_back(Announce{
      false, absl::StrCat(NameOf(member), " lost its connection to ",
                          Describe(*peer), ": ", Printable(lost.reason))});
  const Link link = std::minmax(member.id, lost.peer);
  if (std::count(new_broken_links_.begin(), new_broken_links_.end(), link) >
      0) {
    return;
  }
  new_broken_links_.push_back(link);
  std::vector<absl::Time>& losses = lost_links_[link];
  losses.erase(
      std::remove_if(losses.begin(), losses.end(),
                     [&](absl::Time at) { return now - at > kLossWindow; }),
      losses.end());
  losses.push_back(now);
  if (losses.size() < kLossesMax) return;
  const PeerId goes = WorseOf(link, now);
  lost_links_.erase(link);
  Drop(
      goes,
      absl::StrCat("it and ",
                   NameOf(*Find(goes == link.first ? link.second : link.first)),
                   " cannot keep a connection"),
      out);
}

PeerId Coordinator::WorseOf(const Link& link, absl::Time now) const {
  if (link.first.role != link.second.role) return link.first;  // The worker.
  const PeerId own = PeerId::Shard(options_.own_shard);
  if (link.first == own) return link.second;
  if (link.second == own) return link.first;
  const auto losses_of = [&](PeerId id) {
    int64_t losses = 0;
    for (const auto& [ends, times] : lost_links_) {
      if (ends.first != id && ends.second != id) continue;
      losses += std::count_if(times.begin(), times.end(), [&](absl::Time at) {
        return now - at <= kLossWindow;
      });
    }
    return losses;
  };
  return losses_of(link.first) > losses_of(link.second) ? link.first
                                                        : link.second;
}

void Coordinator::OnSessionEnd(SessionId session, absl::Time now,
                               CoordinatorOutbox& out) {
  NoticePause(now);
  spoken_.erase(session);
  std::erase_if(claims_, [&](const Claim& c) { return c.session == session; });
  Member* member = Find(session);
  if (member == nullptr) return;
  member->session.reset();
  member->missed_after = now + options_.reconnect_grace;
  if (!member->admitted) {
    members_.erase(members_.begin() + (member - members_.data()));
  }
  Advance(now, out);
}

void Coordinator::Drop(PeerId id, const std::string& why,
                       CoordinatorOutbox& out) {
  Member* member = Find(id);
  if (member == nullptr) return;
  const std::string text = absl::StrCat(Describe(*member), " is gone: ", why);
  out.push_back(Announce{true, text});
  if (member->session.has_value()) {
    Refuse(*member->session,
           absl::CancelledError(
               absl::StrCat(NameOf(*member), " was counted as dead: ", why)),
           out);
  }
  const bool running = state_ == JobState::kRunning;
  if (running && member->admitted) {
    lost_.try_emplace(NameOf(*member), member->last_message_at);
    away_.insert(NameOf(*member));
  }
  if (running && AllLeft() && member->left.has_value()) {
    // All work is done, and stays so.
    members_lost_ = true;
    member->session.reset();
    member->told = true;
    return;
  }
  const bool shard = id.role == Role::kShard;
  const bool admitted = member->admitted;
  members_.erase(members_.begin() + (member - members_.data()));
  std::erase_if(lost_links_, [&](const auto& entry) {
    return entry.first.first == id || entry.first.second == id;
  });
  if (!admitted || !running) return;
  members_lost_ = true;
  if (!shard) return;
  if (AllLeft()) {
    shard_lost_ = true;
    return;
  }
  if (EveryShardHasHolder()) {
    const bool served = std::any_of(
        job_->shard_servers.begin(), job_->shard_servers.end(),
        [&](const auto& servers) { return servers.primary == id.rank; });
    if (!served) return;
    return out.push_back(Announce{
        false,
        absl::StrCat("the copies of ", PeerName(id), "'s chunks take over")});
  }
  if (!checkpoints_.newest().has_value() && completing_.empty()) {
    return Fail(
        absl::StrCat(text, ", and there is no checkpoint to go on from"), out);
  }
  shard_lost_ = true;
  out.push_back(Announce{
      true, absl::StrCat("the job waits for another ", PeerName(id),
                         ", and then goes back to its last checkpoint")});
}

void Coordinator::Expire(absl::Time now, CoordinatorOutbox& out) {
  std::erase_if(released_,
                [&](const auto& entry) { return now > entry.second; });
  std::erase_if(silent_, [&](const auto& entry) {
    return now - entry.second > kSilentKept;
  });
  const std::vector<Member> members = members_;  // Drop changes it.
  for (const Member& member : members) {
    if (over()) return;
    if (!member.admitted || member.told) continue;
    const absl::Duration silence = now - member.heard;
    if (silence > options_.lease) {
      silent_.emplace_back(member, now);
      Drop(member.id,
           absl::StrFormat("not heard from for %.1f s",
                           absl::ToDoubleSeconds(silence)),
           out);
    } else if (target_.has_value() && !member.said.has_value() &&
               !member.heartbeat.busy &&
               now - member.asked_at > options_.lease) {
      Drop(member.id,
           absl::StrCat("it has not reported for the next epoch within ",
                        absl::FormatDuration(options_.lease)),
           out);
    } else if (!member.session.has_value() && now > member.missed_after) {
      Drop(member.id, "its session to the coordinator has ended", out);
    }
  }
}

void Coordinator::OnTick(absl::Time now, CoordinatorOutbox& out) {
  NoticePause(now);
  if (state_ == JobState::kRunning) Expire(now, out);
  if (over()) GiveUpOnTheSilent(now);
  Advance(now, out);
  NoteRate(now);
  const std::string missing = DescribeMissing();
  if (missing.empty()) return;
  for (Member& member : members_) {
    const bool waits =
        !member.admitted || member.left.has_value() || target_.has_value();
    if (!waits || !member.session.has_value()) continue;
    if (now - member.noticed < options_.waiting_notice_interval) continue;
    member.noticed = now;
    out.push_back(SendToMember{*member.session, Waiting{missing}});
  }
}

void Coordinator::NoteRate(absl::Time now) {
  if (job_ == nullptr) return;
  const int64_t begun_step = BegunStep();
  // The job has gone back.
  if (!begun_steps_.empty() && begun_steps_.back().second > begun_step) {
    begun_steps_.clear();
  }
  begun_steps_.emplace_back(now, begun_step);
  while (now - begun_steps_.front().first > kRateWindow) {
    begun_steps_.pop_front();
  }
}

void Coordinator::GiveUpOnTheSilent(absl::Time now) {
  for (Member& member : members_) {
    const bool gone = !member.session.has_value() && now > member.missed_after;
    member.told = member.told || gone;
  }
}

int Coordinator::FreeRank() {
  if (job_ != nullptr) return next_rank_++;
  // They begin without gaps, when all are there.
  for (int rank = 0;; ++rank) {
    if (Find(PeerId::Worker(rank)) == nullptr) return rank;
  }
}

void Coordinator::TellAll(const CoordinatorMessage& message,
                          CoordinatorOutbox& out) {
  for (Member& member : members_) {
    if (!member.session.has_value()) continue;
    member.told = true;
    out.push_back(SendToMember{*member.session, message});
    out.push_back(EndSession{*member.session});
  }
}

void Coordinator::Fail(const std::string& reason, CoordinatorOutbox& out) {
  if (state_ == JobState::kFailed || state_ == JobState::kFinished) return;
  state_ = JobState::kFailed;
  reason_ = reason;  // The first cause; what follows are its symptoms.
  if (job_ != nullptr) out.push_back(SaveState{StateToSave()});
  TellAll(JobOver{state_, reason_, saved_round()}, out);
}

}  // namespace nereus
