#include "common/messages/status_messages.h"

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/messages/job_messages.h"

namespace nereus {

// The answer also has the coordinator's build, so that an operator sees which
// version has answered.
v1::GetStatusResponse ToProto(const JobStatus& status) {
  v1::GetStatusResponse message;
  message.set_build(kVersion);
  message.set_job(TextField(status.job));
  message.set_id(status.id);
  message.set_epoch(status.epoch);
  message.set_state(EnumToProto(status.state));
  message.set_step(status.step);
  message.set_steps_per_second(status.steps_per_second);
  message.set_plan(TextField(status.plan));
  message.set_partial(status.partial);
  message.set_reason(TextField(status.reason));
  message.set_waiting(TextField(status.waiting));
  message.set_workers(status.workers);
  message.set_shards(status.shards);
  for (const JobStatus::Member& member : status.members) {
    auto* added = message.add_members();
    *added->mutable_member() = ToProto(member.id);
    added->set_name(TextField(member.name));
    added->set_data_address(TextField(member.data_address));
    added->set_round(member.round);
    *added->mutable_since_heartbeat() = DurationToProto(member.since_heartbeat);
    added->set_left(member.left);
    added->set_stored_bytes(member.stored_bytes);
    added->set_chunks(member.chunks);
    if (member.host != -1) added->set_host(member.host);
    added->set_split(member.split);
    if (!member.stall.has_value()) continue;
    *added->mutable_stall() = StallToProto(*member.stall);
    added->set_stalled_layer(member.stalled_layer);
  }
  message.set_checkpoint_round(status.checkpoint.round);
  message.set_checkpoint_contributions(status.checkpoint.contributions);
  message.set_checkpoint_bytes(status.checkpoint.bytes);
  message.set_checkpoint_wanted(status.checkpoint.wanted);
  message.set_checkpoint_failure(TextField(status.checkpoint.failure));
  for (const ShardServers& servers : status.shard_servers) {
    *message.add_shard_servers() = ToProto(servers);
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
  status.step = message.step();
  status.steps_per_second = message.steps_per_second();
  status.plan = message.plan();
  status.partial = message.partial();
  status.reason = message.reason();
  status.waiting = message.waiting();
  status.workers = message.workers();
  status.shards = message.shards();
  NEREUS_TRY(CheckAtLeast("the workers", status.workers, 0));
  NEREUS_TRY(CheckAtLeast("the shards", status.shards, 0));
  for (const auto& member : message.members()) {
    const PeerId id = NEREUS_TRY(FromProto(member.member()));
    status.members.push_back(
        {id, member.name(), member.data_address(), member.round(),
         DurationFromProto(member.since_heartbeat()), member.left(),
         member.stored_bytes(), member.chunks(), std::nullopt,
         member.stalled_layer(), member.has_host() ? member.host() : -1,
         member.split()});
    if (!member.has_stall()) continue;
    status.members.back().stall = StallFromProto(member.stall());
  }
  status.checkpoint.round = message.checkpoint_round();
  status.checkpoint.contributions = message.checkpoint_contributions();
  status.checkpoint.bytes = message.checkpoint_bytes();
  status.checkpoint.wanted = message.checkpoint_wanted();
  status.checkpoint.failure = message.checkpoint_failure();
  for (const v1::ShardServers& servers : message.shard_servers()) {
    status.shard_servers.push_back(FromProto(servers));
  }
  return status;
}

}  // namespace nereus
