#include "server/report/job_metrics.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/report/job_health.h"

namespace nereus {
namespace {

double UnixSeconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

void AddState(const JobStatus& status, MetricList& metrics) {
  for (const JobState state :
       {JobState::kWaiting, JobState::kRunning, JobState::kFinished,
        JobState::kFailed, JobState::kStopped, JobState::kLost}) {
    metrics.AddGauge("nereus_job_state", "State of the job: 1 for one of them",
                     state == status.state ? 1 : 0,
                     {{"state", std::string(JobStateName(state))}});
  }
}

void AddMembers(const JobStatus& status, MetricList& metrics) {
  const auto live = [&](Role role) {
    return std::count_if(status.members.begin(), status.members.end(),
                         [&](const auto& member) {
                           return member.id.role == role && !member.left;
                         });
  };
  const auto add = [&](const std::string& role, const std::string& state,
                       int64_t count) {
    metrics.AddGauge("nereus_members",
                     "Members that the job needs (expected) and has (live)",
                     static_cast<double>(count),
                     {{"role", role}, {"state", state}});
  };
  add("worker", "expected", status.workers);
  add("worker", "live", live(Role::kWorker));
  add("server", "expected", status.shards);
  add("server", "live", live(Role::kShard));
  const auto add_lost = [&](const std::string& role, int64_t count) {
    metrics.AddCounter("nereus_members_lost_total",
                       "Members that were counted as dead",
                       static_cast<double>(count), {{"role", role}});
  };
  add_lost("worker", status.counts.workers_lost);
  add_lost("server", status.counts.servers_lost);
  const auto add_replaced = [&](const std::string& role,
                                const TimeHistogram& times) {
    metrics.AddHistogram("nereus_member_replacement_seconds",
                         "Times from the last message of a lost member to the "
                         "epoch that the next member of its role joined",
                         times, {{"role", role}});
  };
  add_replaced("worker", status.counts.workers_replaced);
  add_replaced("server", status.counts.servers_replaced);
}

void AddSteps(const JobStatus& status, absl::Time now, MetricList& metrics) {
  for (const auto& [reason, epochs] : status.counts.epochs_by_reason) {
    metrics.AddCounter("nereus_epochs_total",
                       "Epochs that have begun, by the reason for them",
                       static_cast<double>(epochs), {{"reason", reason}});
  }
  metrics.AddCounter("nereus_plan_changes_total",
                     "Epochs that had another plan than the one before",
                     static_cast<double>(status.counts.plan_changes));
  metrics.AddGauge("nereus_step", "Last step that a worker has begun",
                   static_cast<double>(status.steps.begun));
  if (status.steps.since_begun < absl::InfiniteDuration()) {
    metrics.AddGauge("nereus_last_step_timestamp_seconds",
                     "Time when the last step began",
                     UnixSeconds(now - status.steps.since_begun));
  }
  if (status.steps.predicted > absl::ZeroDuration()) {
    metrics.AddGauge("nereus_step_predicted_seconds",
                     "Time of a step that the plan predicts",
                     absl::ToDoubleSeconds(status.steps.predicted));
  }
  if (status.steps.per_second > 0) {
    metrics.AddGauge("nereus_step_measured_seconds",
                     "Time of a step in the last ten seconds",
                     1 / status.steps.per_second);
  }
}

void AddLayers(const JobStatus& status, MetricList& metrics) {
  for (const PlanStatus::Layer& layer : status.plan.layers) {
    metrics.AddGauge("nereus_layer_info",
                     "Scheme and wire type of each layer, the largest ones", 1,
                     {{"layer", layer.name},
                      {"scheme", std::string(SchemeName(layer.route.scheme))},
                      {"wire", std::string(WireTypeName(layer.route.wire))}});
  }
  for (const PlanStatus::Layer& layer : status.plan.layers) {
    metrics.AddGauge("nereus_layer_bytes",
                     "Bytes that a layer moves over the link of a host in a "
                     "step, as planned",
                     static_cast<double>(layer.bytes()),
                     {{"layer", layer.name}});
  }
  for (const PlanStatus::Layer& layer : status.plan.layers) {
    if (!layer.sync_time.has_value()) continue;
    metrics.AddGauge("nereus_layer_sync_seconds",
                     "Time from the push of a layer to its result, median over "
                     "the workers, of the largest layers",
                     absl::ToDoubleSeconds(*layer.sync_time),
                     {{"layer", layer.name}});
  }
}

void AddLateness(const JobStatus& status, MetricList& metrics) {
  std::vector<const JobStatus::Member*> workers;
  absl::Duration longest;
  for (const JobStatus::Member& member : status.members) {
    if (member.id.role == Role::kWorker) workers.push_back(&member);
    if (member.stall.has_value()) {
      longest = std::max(longest, member.stall->waited);
    }
  }
  std::stable_sort(workers.begin(), workers.end(),
                   [](const auto* a, const auto* b) {
                     return a->late_total > b->late_total;
                   });
  workers.resize(std::min<size_t>(workers.size(), kLateWorkersMax));
  for (const JobStatus::Member* worker : workers) {
    metrics.AddCounter("nereus_worker_late_seconds_total",
                       "Time in which the others have waited for a worker",
                       absl::ToDoubleSeconds(worker->late_total),
                       {{"rank", absl::StrCat(worker->id.rank)}});
  }
  metrics.AddGauge("nereus_round_waiting_seconds",
                   "Age of the oldest round that counts as stalled",
                   absl::ToDoubleSeconds(longest));
}

void AddServers(const JobStatus& status, MetricList& metrics) {
  for (size_t shard = 0; shard < status.shard_servers.size(); ++shard) {
    metrics.AddGauge("nereus_shard_backup_current",
                     "1 if a shard has a whole backup on another server",
                     status.shard_servers[shard].backup_is_current ? 1 : 0,
                     {{"shard", absl::StrCat(shard)}});
  }
}

void AddCheckpoints(const JobStatus& status, absl::Time now,
                    MetricList& metrics) {
  metrics.AddCounter("nereus_checkpoints_total", "Checkpoints that are whole",
                     static_cast<double>(status.counts.checkpoints));
  metrics.AddCounter("nereus_checkpoint_failures_total",
                     "Checkpoints that could not be made",
                     static_cast<double>(status.counts.checkpoints_failed));
  const CheckpointStatus& checkpoint = status.checkpoint;
  if (checkpoint.round == kInitialRound) return;
  metrics.AddGauge("nereus_checkpoint_round", "Round of the newest checkpoint",
                   static_cast<double>(checkpoint.round));
  metrics.AddGauge("nereus_checkpoint_bytes", "Size of the newest checkpoint",
                   static_cast<double>(checkpoint.bytes));
  if (checkpoint.since == absl::InfiniteDuration()) return;
  metrics.AddGauge("nereus_checkpoint_last_success_timestamp_seconds",
                   "Time of the newest checkpoint",
                   UnixSeconds(now - checkpoint.since));
}

void AddDiskWaits(const JobStatus& status, MetricList& metrics) {
  absl::Duration longest;
  for (const JobStatus::DiskWait& wait : status.disk_waits) {
    longest = std::max(longest, wait.time);
  }
  metrics.AddGauge("nereus_disk_wait_seconds",
                   "Time for which the coordinator has waited for its disk; 0 "
                   "if that is less than a lease",
                   absl::ToDoubleSeconds(longest));
}

}  // namespace

void AddJobMetrics(const JobStatus& status, absl::Time now,
                   MetricList& metrics) {
  AddState(status, metrics);
  AddMembers(status, metrics);
  AddSteps(status, now, metrics);
  AddLayers(status, metrics);
  AddLateness(status, metrics);
  AddServers(status, metrics);
  AddCheckpoints(status, now, metrics);
  AddDiskWaits(status, metrics);
}

}  // namespace nereus
