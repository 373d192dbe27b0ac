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
constexpr int64_t kRoundMax = int64_t{1} << 62;

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

}  // namespace

absl::Status CoordinatorOptions::Validate() const {
  const ClusterShape cluster{workers, shards};
  NEREUS_RETURN_IF_ERROR(cluster.Validate());
  NEREUS_RETURN_IF_ERROR(CheckText("job name", job));
  if (lease < kLeaseMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease is ", absl::FormatDuration(lease), ", must be ",
                     absl::FormatDuration(kLeaseMin), " or more"));
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

std::string Coordinator::Describe(const Member& member) const {
  return absl::StrCat(PeerName(member.id), " (", member.request.name, " at ",
                      member.request.data_address, ")");
}

std::string Coordinator::DescribeRound(const Member& member) const {
  if (member.id.role == Role::kShard) return "";
  return absl::StrCat(" in round ", member.report.round + 1);
}

absl::Status Coordinator::CheckModel(const JoinRequest& request) const {
  NEREUS_RETURN_IF_ERROR(ValidateLayers(request.layers));
  for (const Member& member : members_) {
    if (member.id.role != Role::kWorker) continue;
    return CompareModels(request.layers, member.request.layers,
                         Describe(member));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckPlace(const JoinRequest& request) const {
  if (request.role == Role::kWorker) {
    if (Count(Role::kWorker) < options_.workers) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("job ", options_.job, " has all its ", options_.workers,
                     " workers; ", request.name, " would be one too many"));
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

void Coordinator::OnJoin(JoinId join, const JoinRequest& request,
                         absl::Time now, CoordinatorOutbox& out) {
  const absl::Status status = CheckJoin(request);
  if (!status.ok()) {
    out.push_back(RefuseJoin{join, status});
    return;
  }
  Member member{join,  request, PeerId::Shard(request.shard), now, now, {},
                false, false};
  if (request.role == Role::kWorker) {
    member.id = PeerId::Worker(Count(Role::kWorker));
  }
  members_.push_back(std::move(member));
  if (Count(Role::kWorker) < options_.workers ||
      Count(Role::kShard) < options_.shards) {
    out.push_back(NotifyWaiting{join, DescribeMissing()});
    return;
  }
  const absl::Status started = Start(now, out);
  if (started.ok()) return;
  Fail(absl::StrCat("no plan: ", started.message()));
  RefuseWaiting(started, out);
}

void Coordinator::RefuseWaiting(const absl::Status& why,
                                CoordinatorOutbox& out) {
  for (const Member& member : members_) {
    out.push_back(RefuseJoin{member.join, why});
  }
  members_.clear();
}

absl::Status Coordinator::Start(absl::Time now, CoordinatorOutbox& out) {
  const auto worker =
      std::find_if(members_.begin(), members_.end(),
                   [](const Member& m) { return m.id.role == Role::kWorker; });
  const std::vector<LayerSpec>& layers = worker->request.layers;
  PlanOptions plan_options;
  plan_options.cluster = {options_.workers, options_.shards};
  plan_options.forced = options_.forced_scheme;
  plan_options.cost = options_.cost;
  NEREUS_ASSIGN_OR_RETURN(Plan plan, MakePlan(layers, plan_options));
  NEREUS_ASSIGN_OR_RETURN(
      job_,
      MakeJob(options_.job_id, kFirstEpoch, options_.workers, options_.shards,
              layers, plan.routes, options_.job_options));
  explanations_ = std::move(plan.explanations);

  Welcome welcome;
  welcome.job = job_;
  welcome.explanations = explanations_;
  welcome.worker_addresses.resize(options_.workers);
  welcome.shard_addresses.resize(options_.shards);
  for (const Member& member : members_) {
    auto& addresses = member.id.role == Role::kWorker ? welcome.worker_addresses
                                                      : welcome.shard_addresses;
    addresses[member.id.rank] = member.request.data_address;
  }
  state_ = JobState::kRunning;
  for (Member& member : members_) {
    member.last_heartbeat = now;
    welcome.rank = member.id.rank;
    out.push_back(AdmitMember{member.join, welcome});
  }
  return absl::OkStatus();
}

void Coordinator::OnJoinCancelled(JoinId join) {
  // Once the job runs, a member that goes away is missed by its heartbeat.
  if (state_ != JobState::kGathering) return;
  members_.erase(
      std::remove_if(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.join == join; }),
      members_.end());
  RankWorkers();
}

void Coordinator::RankWorkers() {
  int rank = 0;
  for (Member& member : members_) {
    if (member.id.role == Role::kWorker) member.id.rank = rank++;
  }
}

absl::StatusOr<Coordinator::Member*> Coordinator::FindMember(uint64_t job,
                                                             uint64_t epoch,
                                                             PeerId id) {
  if (job_ == nullptr || job != job_->id || epoch != job_->epoch) {
    return absl::FailedPreconditionError(
        absl::StrCat(PeerName(id), " is a member of job ", job, " in epoch ",
                     epoch, ", this is job ", options_.job_id, " in epoch ",
                     job_ == nullptr ? 0 : job_->epoch));
  }
  for (Member& member : members_) {
    if (member.id == id) return &member;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("job ", options_.job, " has no ", PeerName(id)));
}

absl::StatusOr<JobVerdict> Coordinator::OnHeartbeat(const Heartbeat& heartbeat,
                                                    absl::Time now) {
  NEREUS_ASSIGN_OR_RETURN(
      Member * member,
      FindMember(heartbeat.job, heartbeat.epoch, heartbeat.member));
  if (heartbeat.round < kInitialRound || heartbeat.round > kRoundMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        PeerName(heartbeat.member), " reports round ", heartbeat.round,
        ", must be in [", kInitialRound, ", ", kRoundMax, "]"));
  }
  member->last_heartbeat = now;
  member->report = heartbeat;
  for (const Heartbeat::LostPeer& lost : heartbeat.lost_peers) {
    const auto found = FindMember(heartbeat.job, heartbeat.epoch, lost.peer);
    if (!found.ok() || (*found)->left) continue;
    Fail(absl::StrCat(Describe(**found),
                      " is gone: ", PeerName(heartbeat.member),
                      " lost its connection (", absl::CHexEscape(lost.reason),
                      ")", DescribeRound(**found)));
  }
  if (state_ == JobState::kFinished || state_ == JobState::kFailed) {
    member->knows = true;
  }
  return JobVerdict{state_, reason_};
}

absl::Status Coordinator::OnLeave(uint64_t job, uint64_t epoch, PeerId id) {
  NEREUS_ASSIGN_OR_RETURN(Member * member, FindMember(job, epoch, id));
  member->left = true;
  const bool all_left = std::all_of(
      members_.begin(), members_.end(),
      [](const Member& m) { return m.id.role != Role::kWorker || m.left; });
  if (state_ == JobState::kRunning && all_left) state_ = JobState::kFinished;
  return absl::OkStatus();
}

void Coordinator::OnTick(absl::Time now, CoordinatorOutbox& out) {
  if (state_ == JobState::kGathering) {
    const std::string missing = DescribeMissing();
    for (Member& member : members_) {
      if (now - member.last_notice < options_.waiting_notice_interval) continue;
      member.last_notice = now;
      out.push_back(NotifyWaiting{member.join, missing});
    }
    return;
  }
  if (state_ == JobState::kFailed && job_ == nullptr) {
    RefuseWaiting(absl::AbortedError(absl::StrCat("job ", options_.job,
                                                  " has failed: ", reason_)),
                  out);
  }
  if (state_ != JobState::kRunning) return;
  for (const Member& member : members_) {
    const absl::Duration silence = now - member.last_heartbeat;
    if (member.left || silence <= options_.lease) continue;
    Fail(absl::StrCat(Describe(member), " is gone: not heard from for ",
                      absl::FormatDuration(silence), DescribeRound(member)));
    return;
  }
}

void Coordinator::Fail(const std::string& reason) {
  if (state_ == JobState::kFailed || state_ == JobState::kFinished) return;
  state_ = JobState::kFailed;
  reason_ = reason;  // The first cause; what follows are its symptoms.
}

bool Coordinator::everyone_knows() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& m) { return m.knows; });
}

std::string Coordinator::DescribeMissing() const {
  std::vector<std::string> missing;
  const int workers_missing = options_.workers - Count(Role::kWorker);
  if (workers_missing > 0) {
    missing.push_back(
        absl::StrCat(workers_missing, " of ", options_.workers, " workers"));
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
  if (state_ == JobState::kGathering) status.waiting = DescribeMissing();
  status.workers = options_.workers;
  status.shards = options_.shards;
  for (const Member& member : members_) {
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         member.report.round, now - member.last_heartbeat, member.left,
         member.report.stored_bytes, member.report.chunks});
  }
  std::sort(status.members.begin(), status.members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return status;
}

}  // namespace nereus
