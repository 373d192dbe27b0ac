#include "common/messages/status_messages.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/messages/activity_messages.h"
#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/messages/job_messages.h"

namespace nereus {

template <>
struct ProtoEnum<LateCause> {
  using Type = v1::GetStatusResponse::LateCause;
  static constexpr LateCause kLast = LateCause::kLink;
};
static_assert(static_cast<int>(LateCause::kComputing) + 1 ==
              v1::GetStatusResponse::LATE_CAUSE_COMPUTING);

namespace {

v1::GetStatusResponse::Pace PaceToProto(const Pace& pace) {
  v1::GetStatusResponse::Pace message;
  *message.mutable_step() = ToProto(pace.step);
  message.set_link_share(pace.link_share);
  *message.mutable_late() = DurationToProto(pace.late);
  message.set_cause(EnumToProto(pace.cause));
  return message;
}

absl::StatusOr<Pace> PaceFromProto(const v1::GetStatusResponse::Pace& message) {
  Pace pace;
  pace.step = FromProto(message.step());
  pace.link_share = message.link_share();
  pace.late = DurationFromProto(message.late());
  pace.cause = NEREUS_TRY(
      EnumFromProto<LateCause>("a member's cause to be late", message.cause()));
  return pace;
}

google::protobuf::Timestamp TimeToProto(absl::Time time) {
  google::protobuf::Timestamp message;
  message.set_seconds(absl::ToUnixSeconds(time));
  message.set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(
      time - absl::FromUnixSeconds(message.seconds()))));
  return message;
}

absl::Time TimeFromProto(const google::protobuf::Timestamp& message) {
  return absl::FromUnixSeconds(message.seconds()) +
         absl::Nanoseconds(message.nanos());
}

v1::GetStatusResponse::TimeHistogram HistogramToProto(
    const TimeHistogram& times) {
  v1::GetStatusResponse::TimeHistogram message;
  message.mutable_counts()->Assign(times.counts().begin(),
                                   times.counts().end());
  *message.mutable_sum() = DurationToProto(times.sum());
  return message;
}

// The histogram of another version may have other ranges: it is taken as empty.
TimeHistogram HistogramFromProto(
    const v1::GetStatusResponse::TimeHistogram& message) {
  TimeHistogram::Counts counts = {};
  if (message.counts_size() != std::ssize(counts)) return TimeHistogram();
  absl::c_copy(message.counts(), counts.begin());
  return TimeHistogram(counts, DurationFromProto(message.sum()));
}

v1::GetStatusResponse::JobCounts CountsToProto(const JobCounts& counts) {
  v1::GetStatusResponse::JobCounts message;
  message.set_epochs(counts.epochs);
  message.set_plan_changes(counts.plan_changes);
  message.set_workers_lost(counts.workers_lost);
  message.set_servers_lost(counts.servers_lost);
  message.set_checkpoints(counts.checkpoints);
  message.set_checkpoints_failed(counts.checkpoints_failed);
  for (const auto& [reason, epochs] : counts.epochs_by_reason) {
    (*message.mutable_epochs_by_reason())[reason] = epochs;
  }
  *message.mutable_workers_replaced() =
      HistogramToProto(counts.workers_replaced);
  *message.mutable_servers_replaced() =
      HistogramToProto(counts.servers_replaced);
  return message;
}

JobCounts CountsFromProto(const v1::GetStatusResponse::JobCounts& message) {
  JobCounts counts;
  counts.epochs = message.epochs();
  counts.plan_changes = message.plan_changes();
  counts.workers_lost = message.workers_lost();
  counts.servers_lost = message.servers_lost();
  counts.checkpoints = message.checkpoints();
  counts.checkpoints_failed = message.checkpoints_failed();
  counts.epochs_by_reason = {message.epochs_by_reason().begin(),
                             message.epochs_by_reason().end()};
  counts.workers_replaced = HistogramFromProto(message.workers_replaced());
  counts.servers_replaced = HistogramFromProto(message.servers_replaced());
  return counts;
}

void AddMember(const JobStatus::Member& member,
               v1::GetStatusResponse& message) {
  auto& added = *message.add_members();
  *added.mutable_member() = ToProto(member.id);
  added.set_name(TextField(member.name));
  added.set_data_address(TextField(member.data_address));
  added.set_round(member.round);
  *added.mutable_since_heartbeat() = DurationToProto(member.since_heartbeat);
  added.set_left(member.left);
  added.set_stored_bytes(member.stored_bytes);
  added.set_chunks(member.chunks);
  if (member.host != -1) added.set_host(member.host);
  added.set_split(member.split);
  *added.mutable_activity() = ToProto(member.activity);
  if (member.pace.has_value()) {
    *added.mutable_pace() = PaceToProto(*member.pace);
  }
  *added.mutable_late_total() = DurationToProto(member.late_total);
  if (member.work.has_value()) *added.mutable_work() = ToProto(*member.work);
  if (!member.stall.has_value()) return;
  *added.mutable_stall() = StallToProto(*member.stall);
  added.set_stalled_layer(member.stalled_layer);
}

absl::StatusOr<JobStatus::Member> MemberFromProto(
    const v1::GetStatusResponse::MemberStatus& message) {
  JobStatus::Member member;
  member.id = NEREUS_TRY(FromProto(message.member()));
  member.name = message.name();
  member.data_address = message.data_address();
  member.round = message.round();
  member.since_heartbeat = DurationFromProto(message.since_heartbeat());
  member.left = message.left();
  member.stored_bytes = message.stored_bytes();
  member.chunks = message.chunks();
  if (message.has_stall()) member.stall = StallFromProto(message.stall());
  if (message.has_work()) member.work = NEREUS_TRY(FromProto(message.work()));
  member.stalled_layer = message.stalled_layer();
  if (message.has_host()) member.host = message.host();
  member.split = message.split();
  member.activity = NEREUS_TRY(FromProto(message.activity()));
  if (message.has_pace()) {
    member.pace = NEREUS_TRY(PaceFromProto(message.pace()));
  }
  member.late_total = DurationFromProto(message.late_total());
  return member;
}

void AddSteps(const StepStatus& steps, v1::GetStatusResponse& message) {
  message.set_step(steps.begun);
  message.set_steps_per_second(steps.per_second);
  message.set_partial(steps.partial);
  if (steps.since_begun < absl::InfiniteDuration()) {
    *message.mutable_since_step() = DurationToProto(steps.since_begun);
  }
  if (steps.predicted > absl::ZeroDuration()) {
    *message.mutable_step_predicted() = DurationToProto(steps.predicted);
  }
}

StepStatus StepsFromProto(const v1::GetStatusResponse& message) {
  StepStatus steps;
  steps.begun = message.step();
  steps.per_second = message.steps_per_second();
  steps.partial = message.partial();
  if (message.has_since_step()) {
    steps.since_begun = DurationFromProto(message.since_step());
  }
  steps.predicted = DurationFromProto(message.step_predicted());
  return steps;
}

void AddPlan(const PlanStatus& plan, v1::GetStatusResponse& message) {
  message.set_plan(TextField(plan.schemes));
  for (const PlanStatus::Layer& layer : plan.layers) {
    auto& added = *message.add_layers();
    added.set_name(TextField(layer.name));
    *added.mutable_route() = RouteToProto(layer.route, layer.explanation);
    added.set_parameters(layer.parameters);
    added.set_index(layer.index);
    if (layer.sync_time.has_value()) {
      *added.mutable_sync_time() = DurationToProto(*layer.sync_time);
    }
  }
  message.set_layers_left_out(plan.layers_left_out);
}

absl::StatusOr<PlanStatus> PlanFromProto(const v1::GetStatusResponse& message) {
  PlanStatus plan;
  plan.schemes = message.plan();
  for (const auto& layer : message.layers()) {
    const Route route = NEREUS_TRY(RouteFromProto(layer.route()));
    plan.layers.push_back({layer.name(), route,
                           ExplanationFromProto(layer.route()),
                           layer.parameters(), layer.index()});
    if (!layer.has_sync_time()) continue;
    plan.layers.back().sync_time = DurationFromProto(layer.sync_time());
  }
  plan.layers_left_out = message.layers_left_out();
  return plan;
}

void AddCheckpoint(const CheckpointStatus& checkpoint,
                   v1::GetStatusResponse& message) {
  message.set_checkpoint_round(checkpoint.round);
  message.set_checkpoint_contributions(checkpoint.contributions);
  message.set_checkpoint_bytes(checkpoint.bytes);
  message.set_checkpoint_wanted(checkpoint.wanted);
  message.set_checkpoint_failure(TextField(checkpoint.failure));
  message.set_checkpoint_damage(TextField(checkpoint.damage));
  if (checkpoint.since < absl::InfiniteDuration()) {
    *message.mutable_since_checkpoint() = DurationToProto(checkpoint.since);
  }
}

CheckpointStatus CheckpointFromProto(const v1::GetStatusResponse& message) {
  CheckpointStatus checkpoint;
  checkpoint.round = message.checkpoint_round();
  checkpoint.contributions = message.checkpoint_contributions();
  checkpoint.bytes = message.checkpoint_bytes();
  checkpoint.wanted = message.checkpoint_wanted();
  checkpoint.failure = message.checkpoint_failure();
  checkpoint.damage = message.checkpoint_damage();
  if (message.has_since_checkpoint()) {
    checkpoint.since = DurationFromProto(message.since_checkpoint());
  }
  return checkpoint;
}

}  // namespace

// The answer also has the coordinator's build, so that an operator sees which
// version has answered.
v1::GetStatusResponse ToProto(const JobStatus& status) {
  v1::GetStatusResponse message;
  message.set_build(kVersion);
  message.set_job(TextField(status.job));
  message.set_id(status.id);
  message.set_epoch(status.epoch);
  message.set_state(EnumToProto(status.state));
  AddSteps(status.steps, message);
  AddPlan(status.plan, message);
  message.set_reason(TextField(status.reason));
  message.set_waiting(TextField(status.waiting));
  *message.mutable_lease() = DurationToProto(status.lease);
  message.set_workers(status.workers);
  message.set_shards(status.shards);
  for (const JobStatus::Member& member : status.members) {
    AddMember(member, message);
  }
  AddCheckpoint(status.checkpoint, message);
  for (const ShardServers& servers : status.shard_servers) {
    *message.add_shard_servers() = ToProto(servers);
  }
  for (const JobStatus::Event& event : status.events) {
    auto& added = *message.add_events();
    *added.mutable_at() = TimeToProto(event.at);
    added.set_bad(event.bad);
    added.set_text(TextField(event.text));
    added.set_event(std::string(NameOf<kLogEventNames>(event.event)));
  }
  *message.mutable_counts() = CountsToProto(status.counts);
  for (const JobStatus::DiskWait& wait : status.disk_waits) {
    auto& added = *message.add_disk_waits();
    added.set_what(TextField(wait.what));
    *added.mutable_time() = DurationToProto(wait.time);
    added.set_error(TextField(wait.error));
    added.set_messages(wait.messages);
  }
  for (const std::string& newcomer : status.newcomers) {
    message.add_newcomers(TextField(newcomer));
  }
  return message;
}

absl::StatusOr<JobStatus> FromProto(const v1::GetStatusResponse& message) {
  JobStatus status;
  status.job = message.job();
  status.id = message.id();
  status.epoch = message.epoch();
  status.state =
      NEREUS_TRY(EnumFromProto<JobState>("the job's state", message.state()));
  status.steps = StepsFromProto(message);
  status.plan = NEREUS_TRY(PlanFromProto(message));
  status.reason = message.reason();
  status.waiting = message.waiting();
  status.lease = DurationFromProto(message.lease());
  status.workers = message.workers();
  status.shards = message.shards();
  NEREUS_TRY(CheckAtLeast("the workers", status.workers, 0));
  NEREUS_TRY(CheckAtLeast("the shards", status.shards, 0));
  for (const auto& message_member : message.members()) {
    JobStatus::Member member = NEREUS_TRY(MemberFromProto(message_member));
    status.members.push_back(std::move(member));
  }
  status.checkpoint = CheckpointFromProto(message);
  for (const v1::ShardServers& servers : message.shard_servers()) {
    status.shard_servers.push_back(FromProto(servers));
  }
  // A newer coordinator may know more kinds of events.
  for (const auto& event : message.events()) {
    status.events.push_back({TimeFromProto(event.at()), event.bad(),
                             event.text(),
                             ParseName<kLogEventNames>("event", event.event())
                                 .value_or(LogEvent::kNone)});
  }
  status.counts = CountsFromProto(message.counts());
  for (const auto& wait : message.disk_waits()) {
    status.disk_waits.push_back({wait.what(), DurationFromProto(wait.time()),
                                 wait.error(), wait.messages()});
  }
  status.newcomers.assign(message.newcomers().begin(),
                          message.newcomers().end());
  return status;
}

}  // namespace nereus
