#include "server/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace nereus {
namespace {

constexpr uint64_t kFirstEpoch = 1;

// A heartbeat may come late, and one may be lost.
const absl::Duration kLeaseMin = 3 * kHeartbeatInterval;

// Beyond what any job reaches, and far from overflow.
constexpr int64_t kStepMax = int64_t{1} << 62;

// Two members that lose each other so often in this time are not both kept.
constexpr size_t kLossesMax = 3;
const absl::Duration kLossWindow = absl::Minutes(1);

// What a member may call itself and where it may be reached, for the log's
// sake.
constexpr size_t kNameBytesMax = 256;

absl::Status CheckText(absl::string_view what, const std::string& text) {
  const bool printable = std::all_of(
      text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!text.empty() && text.size() <= kNameBytesMax && printable) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a member's ", what, " must be 1 to ", kNameBytesMax,
                   " printable characters without spaces, not ", text.size()));
}

absl::Status CheckStep(absl::string_view what, int64_t step) {
  if (step >= kInitialRound && step <= kStepMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a member reports ", what, " ", step, ", must be in [",
                   kInitialRound, ", ", kStepMax, "]"));
}

absl::Status CheckReport(const MachineReport& report) {
  NEREUS_RETURN_IF_ERROR(CheckStep("the step", report.begun_step));
  NEREUS_RETURN_IF_ERROR(
      CheckStep("the round", report.closed_round.value_or(kInitialRound)));
  for (const MachineReport::FactorLayer& layer : report.factor_layers) {
    NEREUS_RETURN_IF_ERROR(CheckStep("the round", layer.done_round));
  }
  return absl::OkStatus();
}

absl::Status CheckAtLeast(absl::string_view name, int value, int low,
                          int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, ", must be in [", low, ", ", high, "]"));
}

}  // namespace

absl::Status CoordinatorOptions::Validate() const {
  const ClusterShape cluster{workers, shards};
  NEREUS_RETURN_IF_ERROR(cluster.Validate());
  NEREUS_RETURN_IF_ERROR(CheckText("job name", job));
  NEREUS_RETURN_IF_ERROR(CheckAtLeast("min_workers", min_workers, 1, workers));
  if (max_workers != 0) {
    NEREUS_RETURN_IF_ERROR(
        CheckAtLeast("max_workers", max_workers, workers, kWorkersMax));
  }
  if (lease < kLeaseMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease is ", absl::FormatDuration(lease), ", must be ",
                     absl::FormatDuration(kLeaseMin), " or more"));
  }
  if (reconnect_grace <= absl::ZeroDuration() || reconnect_grace > lease) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reconnect_grace is ", absl::FormatDuration(reconnect_grace),
        ", must be positive and at most the lease"));
  }
  if (waiting_notice_interval <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("waiting_notice_interval must be > 0");
  }
  return job_options.optimizer.Validate();
}

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)) {}

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

std::string Coordinator::Describe(const Member& member) const {
  return absl::StrCat(PeerName(member.id), " (", member.request.name, " at ",
                      member.request.data_address, ")");
}

absl::Status Coordinator::CheckModel(const JoinRequest& request) const {
  NEREUS_RETURN_IF_ERROR(ValidateLayers(request.layers));
  if (job_ != nullptr) {
    return CompareModels(request.layers, job_->layers, "the job");
  }
  for (const Member& member : members_) {
    if (member.id.role != Role::kWorker) continue;
    return CompareModels(request.layers, member.request.layers,
                         Describe(member));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckPlace(const JoinRequest& request) const {
  if (request.role == Role::kWorker) {
    if (next_rank_ >= kRanksMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "job ", options_.job, " has given out all ", kRanksMax, " ranks"));
    }
    const int most =
        job_ == nullptr ? options_.workers : options_.workers_max();
    if (WorkersHere() < most) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("job ", options_.job, " has all its ", most, " workers; ",
                     request.name, " would be one too many"));
  }
  if (request.shard < 0 || request.shard >= options_.shards) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.name, " says it is shard ", request.shard,
                     " of a job with ", options_.shards, " shards"));
  }
  for (const Member& member : members_) {
    if (member.id != PeerId::Shard(request.shard)) continue;
    return absl::AlreadyExistsError(absl::StrCat(
        request.name, " says it is shard ", request.shard, ", which is ",
        member.request.name, " at ", member.request.data_address));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckJoin(const JoinRequest& request) const {
  // First of all, since messages repeat them.
  NEREUS_RETURN_IF_ERROR(CheckText("name", request.name));
  NEREUS_RETURN_IF_ERROR(CheckText("build", request.build));
  NEREUS_RETURN_IF_ERROR(CheckText("job", request.job));
  NEREUS_RETURN_IF_ERROR(CheckText("data address", request.data_address));
  if (request.incarnation == 0) {
    return absl::InvalidArgumentError("a member's incarnation must not be 0");
  }
  if (request.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "protocol version differs: ", request.name, " (build ", request.build,
        ") speaks ", request.protocol_version, ", the coordinator (build ",
        kVersion, ") speaks ", kProtocolVersion));
  }
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
    return absl::FailedPreconditionError(
        absl::StrCat("job ", options_.job, " is finished"));
  }
  NEREUS_RETURN_IF_ERROR(CheckPlace(request));
  return request.role == Role::kWorker ? CheckModel(request) : absl::OkStatus();
}

void Coordinator::Refuse(SessionId session, absl::Status why,
                         CoordinatorOutbox& out) {
  out.push_back(
      Announce{true, absl::StrCat("refused a process: ", why.message())});
  out.push_back(SendToMember{session, Refusal{std::move(why)}});
  out.push_back(EndSession{session});
}

void Coordinator::OnMessage(SessionId session, const MemberMessage& message,
                            absl::Time now, CoordinatorOutbox& out) {
  if (const auto* join = std::get_if<JoinRequest>(&message)) {
    OnJoin(session, *join, now, out);
  } else if (const auto* resume = std::get_if<Resume>(&message)) {
    OnResume(session, *resume, now, out);
  } else if (Member* member = Find(session); member != nullptr) {
    member->heard = now;
    OnMemberMessage(*member, message, now, out);
  } else {
    Refuse(session,
           absl::FailedPreconditionError("a session begins with a join or a "
                                         "resumption"),
           out);
  }
  Advance(now, out);
}

void Coordinator::OnJoin(SessionId session, const JoinRequest& request,
                         absl::Time now, CoordinatorOutbox& out) {
  if (Find(session) != nullptr) {
    return Refuse(session, absl::InvalidArgumentError("a session joins once"),
                  out);
  }
  // A member whose session broke before it heard that it is one.
  for (Member& member : members_) {
    if (member.request.incarnation != request.incarnation) continue;
    return Attach(member, session, /*epoch=*/0, now, out);
  }
  absl::Status status = CheckJoin(request);
  if (!status.ok()) return Refuse(session, std::move(status), out);
  Member member;
  member.request = request;
  member.id = PeerId::Shard(request.shard);
  if (request.role == Role::kWorker) member.id = PeerId::Worker(next_rank_++);
  member.session = session;
  member.heard = now;
  member.noticed = absl::InfinitePast();
  members_.push_back(std::move(member));
}

void Coordinator::OnResume(SessionId session, const Resume& resume,
                           absl::Time now, CoordinatorOutbox& out) {
  Member* member = Find(resume.member);
  if (resume.job != options_.job_id || member == nullptr ||
      member->request.incarnation != resume.incarnation || !member->admitted) {
    return Refuse(session,
                  absl::CancelledError(absl::StrCat(
                      PeerName(resume.member), " of job ", resume.job,
                      " was counted as dead: it was not heard from in time")),
                  out);
  }
  Attach(*member, session, resume.epoch, now, out);
}

void Coordinator::Attach(Member& member, SessionId session, uint64_t epoch,
                         absl::Time now, CoordinatorOutbox& out) {
  if (member.session.has_value()) out.push_back(EndSession{*member.session});
  member.session = session;
  member.heard = now;
  if (!member.admitted) return;
  if (state_ != JobState::kRunning) {
    out.push_back(SendToMember{session, JobOver{state_, reason_}});
    return;
  }
  if (epoch < job_->epoch) {
    out.push_back(SendToMember{session, StartFor(member)});
  }
  if (target_.has_value()) {
    out.push_back(SendToMember{session, PrepareEpoch{*target_}});
  }
}

void Coordinator::OnMemberMessage(Member& member, const MemberMessage& message,
                                  absl::Time now, CoordinatorOutbox& out) {
  absl::Status status;
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    status = CheckStep("the step", heartbeat->begun_step);
    status.Update(CheckStep("the round", heartbeat->round));
    if (status.ok()) member.heartbeat = *heartbeat;
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
    out.push_back(Announce{
        false, absl::StrCat(PeerName(member.id), " has left, its work done")});
  }
  if (status.ok()) return;
  Drop(member.id, std::string(status.message()), out);
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
  out.push_back(Announce{
      true,
      absl::StrCat(PeerName(member.id), " lost its connection to ",
                   Describe(*peer), ": ", absl::CHexEscape(lost.reason))});
  const Link link = std::minmax(member.id, lost.peer);
  if (std::count(new_lost_links_.begin(), new_lost_links_.end(), link) > 0) {
    return;
  }
  new_lost_links_.push_back(link);
  std::vector<absl::Time>& losses = lost_links_[link];
  losses.erase(
      std::remove_if(losses.begin(), losses.end(),
                     [&](absl::Time at) { return now - at > kLossWindow; }),
      losses.end());
  losses.push_back(now);
  if (losses.size() < kLossesMax) return;
  // One of the two must go: a worker rather than a shard, the younger of two.
  const PeerId goes =
      link.second.role == Role::kWorker ? link.second : link.first;
  lost_links_.erase(link);
  Drop(goes,
       absl::StrCat("it and ",
                    PeerName(goes == link.first ? link.second : link.first),
                    " cannot keep a connection"),
       out);
}

void Coordinator::OnSessionEnd(SessionId session, absl::Time now,
                               CoordinatorOutbox& out) {
  Member* member = Find(session);
  if (member == nullptr) return;
  member->session.reset();
  member->session_lost = now;
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
               absl::StrCat(PeerName(id), " was counted as dead: ", why)),
           out);
  }
  const bool shard = id.role == Role::kShard;
  const bool admitted = member->admitted;
  members_.erase(members_.begin() + (member - members_.data()));
  std::erase_if(lost_links_, [&](const auto& entry) {
    return entry.first.first == id || entry.first.second == id;
  });
  if (!admitted || state_ != JobState::kRunning) return;
  workers_lost_ = true;
  if (shard) Fail(text, out);
}

void Coordinator::Expire(absl::Time now, CoordinatorOutbox& out) {
  const std::vector<Member> members = members_;  // Drop changes it.
  for (const Member& member : members) {
    if (!member.admitted) continue;
    const absl::Duration silence = now - member.heard;
    if (silence > options_.lease) {
      Drop(member.id,
           absl::StrCat("not heard from for ", absl::FormatDuration(silence)),
           out);
    } else if (!member.session.has_value() &&
               now - member.session_lost > options_.reconnect_grace) {
      Drop(member.id, "its session to the coordinator has ended", out);
    }
  }
}

void Coordinator::OnTick(absl::Time now, CoordinatorOutbox& out) {
  if (state_ == JobState::kRunning) Expire(now, out);
  Advance(now, out);
  const std::string missing = DescribeMissing();
  if (missing.empty()) return;
  for (Member& member : members_) {
    const bool waits = !member.admitted || target_.has_value();
    if (!waits || !member.session.has_value()) continue;
    if (now - member.noticed < options_.waiting_notice_interval) continue;
    member.noticed = now;
    out.push_back(SendToMember{*member.session, Waiting{missing}});
  }
}

void Coordinator::Advance(absl::Time now, CoordinatorOutbox& out) {
  if (state_ == JobState::kGathering &&
      Count(Role::kWorker) == options_.workers &&
      Count(Role::kShard) == options_.shards) {
    const absl::Status started = StartJob();
    if (!started.ok()) {
      Fail(absl::StrCat("no plan: ", started.message()), out);
      return;
    }
    state_ = JobState::kRunning;
    Admit(now, out);
  }
  if (state_ != JobState::kRunning) return;
  FinishIfAllLeft(out);
  ReleaseLeavers(out);
  if (state_ != JobState::kRunning) return;
  if (!target_.has_value() && NeedsChange()) StartChange(now, out);
  if (target_.has_value() && EveryoneReported() &&
      WorkersHere() >= options_.min_workers) {
    FinishChange(now, out);
  }
}

absl::Status Coordinator::StartJob() {
  const auto worker =
      std::find_if(members_.begin(), members_.end(),
                   [](const Member& m) { return m.id.role == Role::kWorker; });
  const std::vector<LayerSpec>& layers = worker->request.layers;
  PlanOptions plan_options;
  plan_options.cluster = {options_.workers, options_.shards};
  plan_options.forced = options_.forced_scheme;
  plan_options.cost = options_.cost;
  NEREUS_ASSIGN_OR_RETURN(Plan plan, MakePlan(layers, plan_options));
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
  job.layers = layers;
  job.routes = std::move(plan.routes);
  job.options = options_.job_options;
  NEREUS_ASSIGN_OR_RETURN(job_, MakeJob(std::move(job), options_.shards));
  explanations_ = std::move(plan.explanations);
  last_target_ = kFirstEpoch;
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
  if (workers_lost_) return true;
  for (const Member& member : members_) {
    if (!member.admitted && member.session.has_value()) return true;
    if (!member.left.has_value()) continue;
    // The others go on without one who has left. Until one of them wants to,
    // they may all be about to leave.
    if (job_->PositionOf(member.id.rank) >= 0 && GoneBeyond(*member.left)) {
      return true;
    }
  }
  // A member without a session may be dead: that is settled first.
  return std::any_of(
      new_lost_links_.begin(), new_lost_links_.end(), [&](const Link& link) {
        auto* self = const_cast<Coordinator*>(this);
        const Member* first = self->Find(link.first);
        const Member* second = self->Find(link.second);
        return first != nullptr && second != nullptr &&
               first->session.has_value() && second->session.has_value();
      });
}

void Coordinator::StartChange(absl::Time now, CoordinatorOutbox& out) {
  target_ = ++last_target_;
  for (Member& member : members_) {
    member.said.reset();
    // Mostly all is settled long before a notice is due.
    member.noticed = now;
    if (!member.admitted || !member.session.has_value()) continue;
    out.push_back(SendToMember{*member.session, PrepareEpoch{*target_}});
  }
}

bool Coordinator::EveryoneReported() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return !m.admitted || m.said.has_value();
  });
}

void Coordinator::FinishChange(absl::Time now, CoordinatorOutbox& out) {
  EpochChange change;
  change.shards.resize(options_.shards);
  for (const Member& member : members_) {
    if (member.id.role == Role::kShard) {
      change.shards[member.id.rank] = member.said->report;
    } else if (member.admitted) {
      change.workers.push_back(
          {member.id.rank, member.left.has_value(), member.said->report});
    } else {
      change.joiners.push_back(member.id.rank);
    }
  }
  absl::StatusOr<NextEpoch> next = MakeNextEpoch(*job_, *target_, change);
  if (!next.ok()) return Fail(std::string(next.status().message()), out);
  job_ = next->job;
  afresh_ = std::move(next->afresh);
  target_.reset();
  workers_lost_ = false;
  reset_links_ = std::exchange(new_lost_links_, {});
  out.push_back(Announce{
      false, absl::StrCat("epoch ", job_->epoch, " with ", job_->worker_count(),
                          " workers, from step ", job_->first_step)});
  Admit(now, out);
}

void Coordinator::Admit(absl::Time now, CoordinatorOutbox& out) {
  for (Member& member : members_) {
    if (!member.admitted) member.heartbeat.begun_step = job_->first_step - 1;
    member.admitted = true;
    member.said.reset();
    member.heard = now;
    if (!member.session.has_value()) continue;  // It is told when it resumes.
    out.push_back(SendToMember{*member.session, StartFor(member)});
  }
}

EpochStart Coordinator::StartFor(const Member& member) const {
  EpochStart start;
  start.self = member.id;
  start.fresh = member.id.role == Role::kWorker &&
                std::count(afresh_.begin(), afresh_.end(), member.id.rank) > 0;
  start.job = job_;
  start.explanations = explanations_;
  start.lost_links = reset_links_;
  for (const Member& each : members_) {
    start.seats.push_back(
        {each.id, each.request.incarnation, each.request.data_address});
  }
  return start;
}

void Coordinator::ReleaseLeavers(CoordinatorOutbox& out) {
  std::vector<PeerId> released;
  for (const Member& leaver : members_) {
    // Still a worker of the epoch: the others have not gone on without it.
    if (!leaver.left.has_value() || job_->PositionOf(leaver.id.rank) >= 0) {
      continue;
    }
    const bool needed =
        std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
          return other.id.role == Role::kWorker && !other.left.has_value() &&
                 other.heartbeat.round < *leaver.left;
        });
    if (!needed) released.push_back(leaver.id);
  }
  for (const PeerId id : released) {
    const Member* leaver = Find(id);
    if (leaver->session.has_value()) {
      out.push_back(
          SendToMember{*leaver->session, JobOver{JobState::kFinished, ""}});
      out.push_back(EndSession{*leaver->session});
    }
    members_.erase(members_.begin() + (leaver - members_.data()));
  }
}

void Coordinator::FinishIfAllLeft(CoordinatorOutbox& out) {
  const bool all_left =
      Count(Role::kWorker) > 0 &&
      std::all_of(members_.begin(), members_.end(), [](const Member& m) {
        return m.id.role != Role::kWorker || m.left.has_value();
      });
  if (!all_left) return;
  state_ = JobState::kFinished;
  TellAll(JobOver{state_, ""}, out);
}

void Coordinator::TellAll(const CoordinatorMessage& message,
                          CoordinatorOutbox& out) {
  for (const Member& member : members_) {
    if (!member.session.has_value()) continue;
    out.push_back(SendToMember{*member.session, message});
    out.push_back(EndSession{*member.session});
  }
}

void Coordinator::Fail(const std::string& reason, CoordinatorOutbox& out) {
  if (state_ == JobState::kFailed || state_ == JobState::kFinished) return;
  state_ = JobState::kFailed;
  reason_ = reason;  // The first cause; what follows are its symptoms.
  TellAll(JobOver{state_, reason_}, out);
}

bool Coordinator::everyone_knows() const {
  return std::none_of(members_.begin(), members_.end(),
                      [](const Member& m) { return m.session.has_value(); });
}

std::string Coordinator::DescribeMissing() const {
  if (state_ == JobState::kFinished || state_ == JobState::kFailed) return "";
  std::vector<std::string> missing;
  if (state_ == JobState::kRunning) {
    if (!target_.has_value()) return "";
    for (const Member& member : members_) {
      if (!member.admitted || member.said.has_value()) continue;
      missing.push_back(absl::StrCat("the report of ", Describe(member)));
    }
  }
  const int wanted =
      state_ == JobState::kRunning ? options_.min_workers : options_.workers;
  if (WorkersHere() < wanted) {
    missing.push_back(
        absl::StrCat(wanted - WorkersHere(), " of ", wanted, " workers"));
  }
  for (int shard = 0; shard < options_.shards; ++shard) {
    const bool here = std::any_of(
        members_.begin(), members_.end(),
        [&](const Member& m) { return m.id == PeerId::Shard(shard); });
    if (!here) {
      missing.push_back(absl::StrCat("shard ", shard, " of ", options_.shards));
    }
  }
  if (missing.empty()) return "";
  const std::string here = absl::StrJoin(
      members_, ", ", [this](std::string* text, const Member& member) {
        absl::StrAppend(text, Describe(member));
      });
  return absl::StrCat("job ", options_.job, " waits for ",
                      absl::StrJoin(missing, ", "),
                      "; here: ", here.empty() ? "nobody" : here);
}

JobStatus Coordinator::Status(absl::Time now) const {
  JobStatus status;
  status.job = options_.job;
  status.id = options_.job_id;
  status.epoch = job_ == nullptr ? 0 : job_->epoch;
  status.state = state_;
  status.reason = reason_;
  status.waiting = DescribeMissing();
  status.workers = options_.workers;
  status.shards = options_.shards;
  for (const Member& member : members_) {
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         member.heartbeat.round, now - member.heard, member.left.has_value(),
         member.heartbeat.stored_bytes, member.heartbeat.chunks});
  }
  std::sort(status.members.begin(), status.members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return status;
}

}  // namespace nereus
