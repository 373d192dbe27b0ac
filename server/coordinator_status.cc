#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/coordinator.h"

namespace nereus {
namespace {

std::string DescribePlan(const Job& job) {
  std::map<Scheme, int> layers;
  for (size_t layer = 0; layer < job.model().size(); ++layer) {
    ++layers[job.routes[layer].scheme];
  }
  return absl::StrJoin(layers, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " by ", SchemeName(entry.first));
  });
}

}  // namespace

std::string Coordinator::NameOf(const Member& member) const {
  return member.id.role == Role::kShard
             ? PeerName(member.id)
             : absl::StrCat("worker ", member.request.name);
}

std::string Coordinator::Describe(const Member& member) const {
  const bool is_shard = member.id.role == Role::kShard;
  return absl::StrCat(NameOf(member), " (",
                      is_shard ? member.request.name + " " : "", "at ",
                      member.request.data_address, ")");
}

std::string Coordinator::DescribeMissing() const {
  if (state_ == JobState::kFinished || state_ == JobState::kFailed) return "";
  if (state_ == JobState::kRunning && AllLeft()) {
    const std::optional<int64_t> round = LastCheckpointToCome();
    if (!round.has_value()) return "";
    return absl::StrCat("job ", options_.job,
                        " is done but for its last "
                        "checkpoint, of round ",
                        *round, ", which is being written");
  }
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
  // Copies serve for those that are not here.
  const bool all_wanted = state_ == JobState::kGathering || shard_lost_;
  for (int shard = 0; all_wanted && shard < options_.shards; ++shard) {
    const bool here = std::any_of(
        members_.begin(), members_.end(),
        [&](const Member& m) { return m.id == PeerId::Shard(shard); });
    if (!here) {
      missing.push_back(absl::StrCat("shard ", shard, " of ", options_.shards));
    }
  }
  if (missing.empty()) return "";
  std::vector<std::string> here;
  for (const Member& member : members_) {
    if (!member.left.has_value()) here.push_back(Describe(member));
  }
  return absl::StrCat(
      "job ", options_.job, " waits for ", absl::StrJoin(missing, ", "),
      "; here: ", here.empty() ? "nobody" : absl::StrJoin(here, ", "));
}

JobStatus Coordinator::Status(absl::Time now) const {
  JobStatus status;
  status.job = options_.job;
  status.id = options_.job_id;
  status.epoch = job_ == nullptr ? 0 : job_->epoch;
  status.state = state_;
  status.reason = reason_;
  if (job_ != nullptr) {
    status.step = BegunStep();
    status.plan = DescribePlan(*job_);
    status.partial = job_->partial();
  }
  if (begun_steps_.size() > 1) {
    const auto& [from, first] = begun_steps_.front();
    const auto& [to, last] = begun_steps_.back();
    status.steps_per_second =
        static_cast<double>(last - first) / absl::ToDoubleSeconds(to - from);
  }
  status.waiting = DescribeMissing();
  status.workers = options_.workers;
  status.shards = options_.shards;
  for (const Member& member : members_) {
    status.members.push_back(
        {member.id, member.request.name, member.request.data_address,
         member.heartbeat.round, now - member.heard, member.left.has_value(),
         member.heartbeat.stored_bytes, member.heartbeat.chunks,
         member.heartbeat.stall, ""});
    if (!member.heartbeat.stall.has_value()) continue;
    status.members.back().stalled_layer =
        job_->layers[member.heartbeat.stall->layer].name;
  }
  if (checkpoints_.newest().has_value()) {
    status.checkpoint_round = checkpoints_.newest()->round;
    status.checkpoint_contributions = checkpoints_.newest()->contributions;
    status.checkpoint_bytes = checkpoints_.newest()->bytes();
  }
  if (job_ != nullptr && job_->options.backup) status.holders = job_->holders;
  status.checkpoint_wanted = checkpoint_wanted_;
  status.checkpoint_failure = checkpoint_failure_;
  std::sort(status.members.begin(), status.members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  return status;
}

}  // namespace nereus
