#include "common/messages/status_messages.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/messages/codec.h"
#include "common/messages/job_messages.h"

namespace nereus {

static_assert(static_cast<int>(LateCause::kComputing) + 1 ==
              v1::GetStatusResponse::LATE_CAUSE_COMPUTING);

static void Fields(Codec& c, Pace& pace) {
  c("step", pace.step);
  c("link_share", pace.link_share);
  c("late", pace.late);
  c("cause", pace.cause);
  c("busiest", pace.busiest);
}

// The histogram of another version may have other ranges: it is taken as empty.
static void Fields(Codec& c, TimeHistogram& times) {
  std::vector<int64_t> counts(times.counts().begin(), times.counts().end());
  absl::Duration sum = times.sum();
  c("counts", counts);
  c("sum", sum);
  if (!c.reads()) return;
  TimeHistogram::Counts read = {};
  if (counts.size() != read.size()) return;
  absl::c_copy(counts, read.begin());
  times = TimeHistogram(read, sum);
}

static void Fields(Codec& c, JobCounts& counts) {
  c("epochs", counts.epochs);
  c("plan_changes", counts.plan_changes);
  c("workers_lost", counts.workers_lost);
  c("servers_lost", counts.servers_lost);
  c("checkpoints", counts.checkpoints);
  c("checkpoints_failed", counts.checkpoints_failed);
  c("epochs_by_reason", counts.epochs_by_reason);
  c("workers_replaced", counts.workers_replaced);
  c("servers_replaced", counts.servers_replaced);
}

static void Fields(Codec& c, JobStatus::Member& member) {
  c("member", member.id);
  c("name", member.name);
  c("data_address", member.data_address);
  c("round", member.round);
  c("since_heartbeat", member.since_heartbeat);
  c("left", member.left);
  c("stored_bytes", member.stored_bytes);
  c("chunks", member.chunks);
  c("stall", member.stall);
  c("stalled_layer", member.stalled_layer);
  c.Unless(-1, "host", member.host);
  c("split", member.split);
  c("activity", member.activity);
  c("pace", member.pace);
  c("late_total", member.late_total);
  c("work", member.work);
}

static void Fields(Codec& c, PlanStatus::Layer& layer) {
  ReasonedRoute route{layer.route, layer.explanation};
  c("name", layer.name);
  c("route", route);
  c("parameters", layer.parameters);
  c("index", layer.index);
  c("sync_time", layer.sync_time);
  if (!c.reads()) return;
  layer.route = route.route;
  layer.explanation = route.why;
}

// A newer coordinator may know more kinds of events.
static void Fields(Codec& c, JobStatus::Event& event) {
  std::string name(NameOf<kLogEventNames>(event.event));
  c("at", event.at);
  c("bad", event.bad);
  c("text", event.text);
  c("event", name);
  c("member", event.member);
  if (!c.reads()) return;
  event.event =
      ParseName<kLogEventNames>("event", name).value_or(LogEvent::kNone);
}

static void Fields(Codec& c, JobStatus::DiskWait& wait) {
  c("what", wait.what);
  c("time", wait.time);
  c("error", wait.error);
  c("messages", wait.messages);
}

static void CopySteps(Codec& c, StepStatus& steps) {
  c("step", steps.begun);
  c("steps_per_second", steps.per_second);
  c("partial", steps.partial);
  c.Unless(absl::InfiniteDuration(), "since_step", steps.since_begun);
  c.Unless(absl::ZeroDuration(), "step_predicted", steps.predicted);
}

static void CopyCheckpoint(Codec& c, CheckpointStatus& checkpoint) {
  c("checkpoint_round", checkpoint.round);
  c("checkpoint_contributions", checkpoint.contributions);
  c("checkpoint_bytes", checkpoint.bytes);
  c("checkpoint_wanted", checkpoint.wanted);
  c("checkpoint_failure", checkpoint.failure);
  c("checkpoint_damage", checkpoint.damage);
  c.Unless(absl::InfiniteDuration(), "since_checkpoint", checkpoint.since);
}

static void Fields(Codec& c, JobStatus& status) {
  c("job", status.job);
  c("id", status.id);
  c("epoch", status.epoch);
  c("state", status.state);
  CopySteps(c, status.steps);
  c("plan", status.plan.schemes);
  c("layers", status.plan.layers);
  c("layers_left_out", status.plan.layers_left_out);
  c("reason", status.reason);
  c("waiting", status.waiting);
  c("lease", status.lease);
  c("workers", status.workers);
  c("shards", status.shards);
  c("members", status.members);
  CopyCheckpoint(c, status.checkpoint);
  c("shard_servers", status.shard_servers);
  c("events", status.events);
  c("counts", status.counts);
  c("disk_waits", status.disk_waits);
  c("newcomers", status.newcomers);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckAtLeast("the workers", status.workers, 0));
    return CheckAtLeast("the shards", status.shards, 0);
  });
}

// The answer also has the coordinator's build, so that an operator sees which
// version has answered.
v1::GetStatusResponse ToProto(const JobStatus& status) {
  auto message = Encoded<v1::GetStatusResponse>(status);
  message.set_build(kVersion);
  return message;
}

absl::StatusOr<JobStatus> FromProto(const v1::GetStatusResponse& message) {
  return Decoded<JobStatus>(message);
}

}  // namespace nereus
