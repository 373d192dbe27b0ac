#include "server/coordinator/tally.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace nereus {
namespace {

// Time between two updates of the paces: as heartbeats bring news.
constexpr absl::Duration kPacesInterval = kHeartbeatInterval;

// Returns the workers of an epoch, and the servers that hold shards in it.
std::set<PeerId> MembersOf(const Job& job) {
  std::set<PeerId> members;
  for (const EpochWorker& worker : job.workers) {
    members.insert(PeerId::Worker(worker.rank));
  }
  for (const ShardServers& servers : job.shard_servers) {
    members.insert(PeerId::Shard(servers.primary));
    if (servers.backup >= 0) members.insert(PeerId::Shard(servers.backup));
  }
  return members;
}

}  // namespace

// Each reason has a number from the start: a series that begins at 1 would hide
// its first event from Prometheus.
Tally::Tally(const Job* job) {
  for (const char* const reason :
       {"start", "lost", "join", "leave", "plan", "checkpoint", "other"}) {
    counts_.epochs_by_reason[reason] = 0;
  }
  if (job != nullptr) Follow(*job);
}

void Tally::Follow(const Job& job) {
  routes_ = job.routes;
  members_ = MembersOf(job);
  checkpoint_round_ = job.checkpoint_round;
}

std::string Tally::ReasonFor(const Job& job,
                             const std::set<PeerId>& members) const {
  if (routes_.empty()) return "start";
  if (has_lost_) return "lost";
  if (!absl::c_includes(members_, members)) return "join";
  if (members_ != members) return "leave";
  if (routes_ != job.routes) return "plan";
  return checkpoint_round_ != job.checkpoint_round ? "checkpoint" : "other";
}

// A lost member may be back in the next epoch already: OnDead has taken it out
// of members_, so it counts as one that joins.
void Tally::OnEpoch(const Job& job, absl::Time now) {
  const std::set<PeerId> members = MembersOf(job);
  ++counts_.epochs;
  ++counts_.epochs_by_reason[ReasonFor(job, members)];
  if (!routes_.empty() && routes_ != job.routes) ++counts_.plan_changes;
  for (const PeerId member : members) {
    std::deque<absl::Time>& lost = lost_[member.role];
    if (members_.contains(member) || lost.empty()) continue;
    (member.role == Role::kWorker ? counts_.workers_replaced
                                  : counts_.servers_replaced)
        .Add(now - lost.front());
    lost.pop_front();
  }
  Follow(job);
  has_lost_ = false;
}

void Tally::OnDead(const MemberRecord& member) {
  ++(member.is_worker() ? counts_.workers_lost : counts_.servers_lost);
  has_lost_ = true;
  members_.erase(member.id);
  if (member.has_left()) return;  // No other worker is to take its place.
  std::deque<absl::Time>& lost = lost_[member.id.role];
  lost.push_back(member.times.last_message_at);
  if (lost.size() > kLostMax) lost.pop_front();
}

void Tally::OnCheckpoint(bool is_complete, absl::Time now) {
  ++(is_complete ? counts_.checkpoints : counts_.checkpoints_failed);
  if (is_complete) checkpoint_at_ = now;
}

// The first step that this coordinator hears of need not have begun now.
void Tally::OnTick(int64_t begun_step, absl::Time now) {
  rate_.Note(now, begun_step);
  if (step_.has_value() && begun_step > *step_) step_at_ = now;
  step_ = begun_step;
  if (now - paces_at_ < kPacesInterval) return;
  paces_at_ = now;
  paces_.Update(now);
}

std::optional<absl::Duration> Tally::SyncTimeOf(size_t layer) const {
  std::vector<absl::Duration> times;
  for (const auto& [worker, all] : sync_times_) {
    if (layer < all.size() && all[layer] > absl::ZeroDuration()) {
      times.push_back(all[layer]);
    }
  }
  if (times.empty()) return std::nullopt;
  const auto middle = times.begin() + (std::ssize(times) - 1) / 2;
  absl::c_nth_element(times, middle);
  return *middle;
}

void Tally::Fill(JobStatus& status, absl::Time now) const {
  status.steps.per_second = rate_.PerSecond();
  status.steps.since_begun = now - step_at_;
  status.checkpoint.since = now - checkpoint_at_;
  status.counts = counts_;
  for (PlanStatus::Layer& layer : status.plan.layers) {
    layer.sync_time = SyncTimeOf(layer.index);
  }
  for (JobStatus::Member& member : status.members) {
    member.pace = paces_.PaceOf(member.id);
    member.late_total = paces_.LateTotal(member.id);
  }
}

}  // namespace nereus
