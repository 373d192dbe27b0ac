#include "common/messages/messages.h"

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/messages/activity_messages.h"
#include "common/messages/enums.h"
#include "common/messages/fields.h"
#include "common/messages/gathering_messages.h"
#include "common/messages/job_messages.h"
#include "common/messages/trace_messages.h"

// Conversion of all control messages. The first half has one pair of functions
// for each message with many fields. ToProto and FromProto at the end choose
// the function for the message's type. All texts that users see go through
// TextField, because Protobuf strings must be UTF-8 and a text may quote any
// bytes. JobOver::saved_round travels plus one (saved_rounds), so that an
// absent field means that there is no checkpoint.

namespace nereus {
namespace {

// Both functions of each pair below must name all fields of the message: if one
// function left a field out, its value would be lost without an error.
v1::JoinRequest JoinToProto(const JoinRequest& request) {
  v1::JoinRequest message;
  message.set_protocol_version(request.protocol_version);
  message.set_build(request.build);
  message.set_job(TextField(request.job));
  message.set_role(EnumToProto(request.role));
  message.set_shard(request.shard);
  message.set_incarnation(request.incarnation);
  message.set_name(TextField(request.name));
  message.set_data_address(TextField(request.data_address));
  message.set_state_arrays(request.caller.state_arrays);
  message.set_has_checkpoints(request.has_checkpoints);
  message.set_products(TextField(request.products));
  *message.mutable_host() = ToProto(request.host);
  for (const Setting& setting : request.settings) {
    v1::Setting* added = message.add_settings();
    added->set_name(TextField(setting.name));
    added->set_value(TextField(setting.value));
  }
  if (request.caller.optimizer.has_value()) {
    message.set_optimizer(EnumToProto(*request.caller.optimizer));
  }
  message.set_scales_loss(request.caller.scales_loss);
  if (request.launch_rank.has_value()) {
    message.set_launch_rank(*request.launch_rank);
  }
  for (const LayerSpec& layer : request.layers) {
    *message.add_layers() = ToProto(layer);
  }
  return message;
}

absl::StatusOr<MemberMessage> ResumeFromProto(const v1::Resume& message) {
  const PeerId member = NEREUS_TRY(FromProto(message.member()));
  return Resume{message.job(), member, message.incarnation(), message.epoch()};
}

// Checks only enums and the number of layers. The coordinator compares the
// fields with the job, and its error names the field that differs
// (join_rules.h).
absl::StatusOr<JoinRequest> JoinFromProto(const v1::JoinRequest& message) {
  JoinRequest request;
  request.protocol_version = message.protocol_version();
  request.build = message.build();
  request.job = message.job();
  request.role = NEREUS_TRY(EnumFromProto<Role>("the role", message.role()));
  request.shard = message.shard();
  request.incarnation = message.incarnation();
  request.name = message.name();
  request.data_address = message.data_address();
  request.caller.state_arrays = message.state_arrays();
  request.has_checkpoints = message.has_checkpoints();
  request.products = message.products();
  request.host = FromProto(message.host());
  for (const v1::Setting& setting : message.settings()) {
    request.settings.push_back({setting.name(), setting.value()});
  }
  if (message.optimizer() != v1::OPTIMIZER_PLACE_UNSPECIFIED) {
    request.caller.optimizer = NEREUS_TRY(EnumFromProto<OptimizerPlace>(
        "the optimizer's place", message.optimizer()));
  }
  request.caller.scales_loss = message.scales_loss();
  if (message.has_launch_rank()) request.launch_rank = message.launch_rank();
  request.layers = NEREUS_TRY(LayersFromProto(message.layers()));
  return request;
}

v1::Heartbeat HeartbeatToProto(const Heartbeat& beat) {
  v1::Heartbeat message;
  message.set_begun_step(beat.begun_step);
  message.set_round(beat.round);
  message.set_stored_bytes(beat.stored_bytes);
  message.set_chunks(beat.chunks);
  if (beat.stall.has_value()) {
    *message.mutable_stall() = StallToProto(*beat.stall);
  }
  message.set_epoch(beat.epoch);
  message.mutable_current_backups()->Add(beat.current_backups.begin(),
                                         beat.current_backups.end());
  if (beat.work.has_value()) *message.mutable_work() = ToProto(*beat.work);
  if (beat.pushed_step != kInitialRound) {
    message.set_pushed_step(beat.pushed_step);
  }
  message.set_went_back_in(beat.went_back_in);
  *message.mutable_activity() = ToProto(beat.activity);
  return message;
}

absl::StatusOr<Heartbeat> HeartbeatFromProto(const v1::Heartbeat& message) {
  Heartbeat beat;
  beat.begun_step = message.begun_step();
  beat.round = message.round();
  beat.stored_bytes = message.stored_bytes();
  beat.chunks = message.chunks();
  if (message.has_stall()) beat.stall = StallFromProto(message.stall());
  beat.epoch = message.epoch();
  beat.current_backups.assign(message.current_backups().begin(),
                              message.current_backups().end());
  if (message.has_work()) beat.work = NEREUS_TRY(FromProto(message.work()));
  if (message.has_pushed_step()) beat.pushed_step = message.pushed_step();
  beat.went_back_in = message.went_back_in();
  beat.activity = NEREUS_TRY(FromProto(message.activity()));
  return beat;
}

v1::CheckpointPart PartToProto(const CheckpointPart& part) {
  v1::CheckpointPart message;
  message.set_epoch(part.epoch);
  message.set_round(part.round);
  message.set_file(part.file);
  message.set_bytes(part.bytes);
  message.set_crc(part.crc);
  message.set_error(TextField(part.error));
  message.set_shard(part.shard);
  return message;
}

v1::CheckpointDamaged DamagedToProto(const CheckpointDamaged& damaged) {
  v1::CheckpointDamaged message;
  message.set_epoch(damaged.epoch);
  message.set_round(damaged.round);
  message.set_reason(TextField(damaged.reason));
  return message;
}

CheckpointDamaged DamagedFromProto(const v1::CheckpointDamaged& message) {
  return {message.epoch(), message.round(), message.reason()};
}

CheckpointPart PartFromProto(const v1::CheckpointPart& part) {
  return {part.epoch(), part.shard(), part.round(), part.file(),
          part.bytes(), part.crc(),   part.error()};
}

v1::EpochReport ReportToProto(const EpochReport& report) {
  v1::EpochReport message;
  message.set_target(report.target);
  message.set_epoch(report.epoch);
  message.set_begun_step(report.report.begun_step);
  message.set_fetching(report.report.fetching);
  for (const MachineReport::PeerLayer& layer : report.report.peer_layers) {
    v1::EpochReport::PeerLayer* added = message.add_peer_layers();
    added->set_layer(layer.layer);
    added->set_done_round(layer.done_round);
    added->set_contributors(layer.contributors);
  }
  message.mutable_closed_rounds()->insert(report.report.closed_rounds.begin(),
                                          report.report.closed_rounds.end());
  for (const StepVerdict& verdict : report.report.verdicts) {
    *message.add_verdicts() = ToProto(verdict);
  }
  message.set_ready_to_switch(report.report.ready_to_switch);
  return message;
}

v1::ReplicaChecksums ChecksumsToProto(const ReplicaChecksums& checksums) {
  v1::ReplicaChecksums message;
  message.set_epoch(checksums.epoch);
  message.set_round(checksums.round);
  message.mutable_layers()->Add(checksums.layers.begin(),
                                checksums.layers.end());
  message.set_is_sample(checksums.is_sample);
  if (checksums.shard.has_value()) message.set_shard(*checksums.shard);
  message.set_first_chunk(checksums.first_chunk);
  return message;
}

ReplicaChecksums ChecksumsFromProto(const v1::ReplicaChecksums& message) {
  ReplicaChecksums checksums{message.epoch(),
                             message.round(),
                             {message.layers().begin(), message.layers().end()},
                             message.is_sample()};
  if (message.has_shard()) checksums.shard = message.shard();
  checksums.first_chunk = message.first_chunk();
  return checksums;
}

// The coordinator compares the rows with its model (CheckFactorRows).
absl::StatusOr<FactorRows> RowsFromProto(const v1::FactorRows& message) {
  if (message.rows_size() > kLayersMax) {
    return InvalidArgumentError("a report of rows has ", message.rows_size(),
                                " layers, at most ", kLayersMax);
  }
  return FactorRows{{message.rows().begin(), message.rows().end()}};
}

EpochReport ReportFromProto(const v1::EpochReport& message) {
  EpochReport report;
  report.target = message.target();
  report.epoch = message.epoch();
  report.report.begun_step = message.begun_step();
  report.report.fetching = message.fetching();
  for (const v1::EpochReport::PeerLayer& layer : message.peer_layers()) {
    report.report.peer_layers.push_back(
        {layer.layer(), layer.done_round(), layer.contributors()});
  }
  report.report.closed_rounds.insert(message.closed_rounds().begin(),
                                     message.closed_rounds().end());
  for (const v1::StepVerdict& verdict : message.verdicts()) {
    report.report.verdicts.push_back(FromProto(verdict));
  }
  report.report.ready_to_switch = message.ready_to_switch();
  return report;
}

v1::EpochStart StartToProto(const EpochStart& start) {
  v1::EpochStart message;
  *message.mutable_self() = ToProto(start.self);
  message.set_from_base(start.from_base);
  *message.mutable_job() = ToProto(*start.job, start.explanations);
  for (const EpochMember& each : start.epoch_members) {
    *message.add_epoch_members() = ToProto(each);
  }
  for (const auto& [first, second] : start.broken_links) {
    v1::EpochStart::Link* added = message.add_broken_links();
    *added->mutable_first() = ToProto(first);
    *added->mutable_second() = ToProto(second);
  }
  *message.mutable_lease() = DurationToProto(start.lease);
  return message;
}

// `self`, the receiver, must be a member of the epoch. Otherwise the receiver
// would not find its own incarnation.
absl::StatusOr<EpochStart> StartFromProto(const v1::EpochStart& message) {
  EpochStart start;
  start.self = NEREUS_TRY(FromProto(message.self()));
  start.from_base = message.from_base();
  start.job = NEREUS_TRY(FromProto(message.job(), start.explanations));
  start.epoch_members =
      NEREUS_TRY(EpochMembersFromProto(message.epoch_members(), *start.job));
  for (const v1::EpochStart::Link& link : message.broken_links()) {
    const PeerId first = NEREUS_TRY(FromProto(link.first()));
    const PeerId second = NEREUS_TRY(FromProto(link.second()));
    start.broken_links.emplace_back(first, second);
  }
  start.lease = DurationFromProto(message.lease());
  if (start.lease < kLeaseMin || start.lease > kLeaseMax) {
    return InvalidArgumentError(
        "an epoch has a lease of ", absl::FormatDuration(start.lease),
        ", must be from ", absl::FormatDuration(kLeaseMin), " to ",
        absl::FormatDuration(kLeaseMax));
  }
  const bool seated = absl::c_any_of(
      start.epoch_members,
      [&](const EpochMember& each) { return each.id == start.self; });
  if (seated) return start;
  return InvalidArgumentError(
      "the epoch that ", PeerName(start.self),
      " must enter has no entry for it in epoch_members");
}

// A coordinator of ours never sends a value outside these ranges.
absl::StatusOr<SetFusion> FusionFromProto(const v1::SetFusion& set) {
  if (set.bytes() < 0 || set.bytes() > kFusionBytesMax || set.steps() < 0) {
    return InvalidArgumentError("SetFusion has ", set.bytes(), " bytes and ",
                                set.steps(), " steps: bytes must be from 0 to ",
                                kFusionBytesMax, ", and steps 0 or more");
  }
  NEREUS_TRY(CheckAtLeast("the trial", set.trial(), 0));
  NEREUS_TRY(CheckAtLeast("the first step", set.from_step(), 0));
  return SetFusion{set.trial(), set.bytes(), set.from_step(), set.steps()};
}

}  // namespace

v1::HostClaim ToProto(const HostClaim& claim) {
  v1::HostClaim message;
  message.set_node(TextField(claim.node));
  message.set_machine(TextField(claim.machine));
  return message;
}

HostClaim FromProto(const v1::HostClaim& message) {
  return {message.node(), message.machine()};
}

v1::EpochStart::EpochMember ToProto(const EpochMember& each) {
  v1::EpochStart::EpochMember message;
  *message.mutable_member() = ToProto(each.id);
  message.set_incarnation(each.incarnation);
  message.set_data_address(TextField(each.data_address));
  if (each.host != -1) message.set_host(each.host);
  return message;
}

// If a member had two entries, it would have two addresses. If it had none, its
// peers would wait for it for ever.
absl::StatusOr<std::vector<EpochMember>> EpochMembersFromProto(
    const google::protobuf::RepeatedPtrField<v1::EpochStart::EpochMember>&
        epoch_members,
    const Job& job) {
  std::vector<EpochMember> read;
  std::set<PeerId> seated;
  for (const v1::EpochStart::EpochMember& each : epoch_members) {
    const PeerId id = NEREUS_TRY(FromProto(each.member()));
    const int32_t host = each.has_host() ? each.host() : -1;
    if (host < -1 || host >= kHostsMax) {
      return InvalidArgumentError(PeerName(id), " is on host ", host,
                                  ", must be in [-1, ", kHostsMax, ")");
    }
    read.push_back({id, each.incarnation(), each.data_address(), host});
    seated.insert(id);
  }
  std::set<PeerId> members;
  for (const EpochWorker& worker : job.workers) {
    members.insert(PeerId::Worker(worker.rank));
  }
  for (const int32_t rank : job.crew.left_workers)
    members.insert(PeerId::Worker(rank));
  for (const ShardServers& servers : job.shard_servers) {
    members.insert(PeerId::Shard(servers.primary));
    if (servers.backup != -1) members.insert(PeerId::Shard(servers.backup));
  }
  if (seated == members && read.size() == members.size()) return read;
  return InvalidArgumentError("the epoch has ", read.size(),
                              " epoch_members for its ", members.size(),
                              " members: each member must have exactly one");
}

// Converts the messages in the order of the variant.
v1::MemberMessage ToProto(const MemberMessage& message) {
  v1::MemberMessage proto;
  if (const auto* join = std::get_if<JoinRequest>(&message)) {
    *proto.mutable_join() = JoinToProto(*join);
  } else if (const auto* resume = std::get_if<Resume>(&message)) {
    proto.mutable_resume()->set_job(resume->job);
    *proto.mutable_resume()->mutable_member() = ToProto(resume->member);
    proto.mutable_resume()->set_incarnation(resume->incarnation);
    proto.mutable_resume()->set_epoch(resume->epoch);
  } else if (const auto* beat = std::get_if<Heartbeat>(&message)) {
    *proto.mutable_heartbeat() = HeartbeatToProto(*beat);
  } else if (const auto* lost = std::get_if<LostPeer>(&message)) {
    proto.mutable_lost_peer()->set_epoch(lost->epoch);
    *proto.mutable_lost_peer()->mutable_peer() = ToProto(lost->peer);
    proto.mutable_lost_peer()->set_reason(TextField(lost->reason));
    proto.mutable_lost_peer()->set_reached(lost->reached);
  } else if (const auto* report = std::get_if<EpochReport>(&message)) {
    *proto.mutable_epoch_report() = ReportToProto(*report);
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    proto.mutable_leave()->set_last_step(leave->last_step);
    proto.mutable_leave()->set_epoch(leave->epoch);
    proto.mutable_leave()->set_early(leave->early);
  } else if (const auto* part = std::get_if<CheckpointPart>(&message)) {
    *proto.mutable_checkpoint_part() = PartToProto(*part);
  } else if (const auto* damaged = std::get_if<CheckpointDamaged>(&message)) {
    *proto.mutable_checkpoint_damaged() = DamagedToProto(*damaged);
  } else if (const auto* failure = std::get_if<Failure>(&message)) {
    proto.set_failure(TextField(failure->reason));
  } else if (const auto* timed = std::get_if<FusionTimed>(&message)) {
    proto.mutable_fusion_timed()->set_trial(timed->trial);
    proto.mutable_fusion_timed()->set_begun_step(timed->begun_step);
    proto.mutable_fusion_timed()->set_step_seconds(timed->step_seconds);
  } else if (const auto* ready_to_switch =
                 std::get_if<ReadyToSwitch>(&message)) {
    proto.mutable_ready_to_switch()->set_epoch(ready_to_switch->epoch);
  } else if (const auto* measured = std::get_if<Measured>(&message)) {
    *proto.mutable_measured() = ToProto(*measured);
  } else if (const auto* want = std::get_if<WantCheckpoint>(&message)) {
    proto.mutable_want_checkpoint()->set_begun_step(want->begun_step);
  } else if (const auto* sums = std::get_if<ReplicaChecksums>(&message)) {
    *proto.mutable_replica_checksums() = ChecksumsToProto(*sums);
  } else if (const auto* gather = std::get_if<Gather>(&message)) {
    *proto.mutable_gather() = ToProto(*gather);
  } else if (const auto* question = std::get_if<ClockQuestion>(&message)) {
    *proto.mutable_clock_question() = ToProto(*question);
  } else if (const auto* part = std::get_if<TracePart>(&message)) {
    *proto.mutable_trace_part() = ToProto(*part);
  } else if (const auto* lobby = std::get_if<LobbyGather>(&message)) {
    *proto.mutable_lobby_gather() = ToProto(*lobby);
  } else if (const auto* rows = std::get_if<FactorRows>(&message)) {
    proto.mutable_factor_rows()->mutable_rows()->Add(rows->rows.begin(),
                                                     rows->rows.end());
  }
  return proto;
}

absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message) {
  switch (message.message_case()) {
    case v1::MemberMessage::kJoin:
      return JoinFromProto(message.join());
    case v1::MemberMessage::kResume:
      return ResumeFromProto(message.resume());
    case v1::MemberMessage::kHeartbeat:
      return NEREUS_TRY(HeartbeatFromProto(message.heartbeat()));
    case v1::MemberMessage::kLostPeer: {
      const v1::LostPeer& lost = message.lost_peer();
      const PeerId peer = NEREUS_TRY(FromProto(lost.peer()));
      return LostPeer{lost.epoch(), peer, lost.reason(), lost.reached()};
    }
    case v1::MemberMessage::kEpochReport:
      return ReportFromProto(message.epoch_report());
    case v1::MemberMessage::kLeave:
      return Leave{message.leave().last_step(), message.leave().epoch(),
                   message.leave().early()};
    case v1::MemberMessage::kCheckpointPart:
      return PartFromProto(message.checkpoint_part());
    case v1::MemberMessage::kCheckpointDamaged:
      return DamagedFromProto(message.checkpoint_damaged());
    case v1::MemberMessage::kFailure:
      return Failure{message.failure()};
    case v1::MemberMessage::kFusionTimed: {
      const v1::FusionTimed& timed = message.fusion_timed();
      return FusionTimed{timed.trial(), timed.begun_step(),
                         timed.step_seconds()};
    }
    case v1::MemberMessage::kReadyToSwitch:
      return ReadyToSwitch{message.ready_to_switch().epoch()};
    case v1::MemberMessage::kMeasured:
      return FromProto(message.measured());
    case v1::MemberMessage::kWantCheckpoint:
      return WantCheckpoint{message.want_checkpoint().begun_step()};
    case v1::MemberMessage::kReplicaChecksums:
      return ChecksumsFromProto(message.replica_checksums());
    case v1::MemberMessage::kGather:
      return FromProto(message.gather());
    case v1::MemberMessage::kClockQuestion:
      return FromProto(message.clock_question());
    case v1::MemberMessage::kTracePart:
      return NEREUS_TRY(FromProto(message.trace_part()));
    case v1::MemberMessage::kFactorRows:
      return NEREUS_TRY(RowsFromProto(message.factor_rows()));
    case v1::MemberMessage::kLobbyGather:
      return FromProto(message.lobby_gather());
    // A message of a type that only a newer build knows looks like this, too.
    case v1::MemberMessage::MESSAGE_NOT_SET:
      break;
  }
  return InvalidArgumentError("a member's message is empty or unknown");
}

v1::CoordinatorMessage ToProto(const CoordinatorMessage& message) {
  v1::CoordinatorMessage proto;
  if (const auto* waiting = std::get_if<Waiting>(&message)) {
    proto.set_waiting(TextField(waiting->text));
  } else if (const auto* refusal = std::get_if<Refusal>(&message)) {
    proto.mutable_refusal()->set_code(static_cast<int>(refusal->why.code()));
    proto.mutable_refusal()->set_text(TextField(refusal->why.message()));
  } else if (const auto* prepare = std::get_if<PrepareEpoch>(&message)) {
    proto.mutable_prepare_epoch()->set_target(prepare->target);
  } else if (const auto* start = std::get_if<EpochStart>(&message)) {
    *proto.mutable_epoch_start() = StartToProto(*start);
  } else if (const auto* over = std::get_if<JobOver>(&message)) {
    proto.mutable_job_over()->set_state(EnumToProto(over->state));
    proto.mutable_job_over()->set_reason(TextField(over->reason));
    proto.mutable_job_over()->set_saved_rounds(over->saved_round + 1);
  } else if (const auto* set = std::get_if<SetFusion>(&message)) {
    proto.mutable_set_fusion()->set_trial(set->trial);
    proto.mutable_set_fusion()->set_bytes(set->bytes);
    proto.mutable_set_fusion()->set_from_step(set->from_step);
    proto.mutable_set_fusion()->set_steps(set->steps);
  } else if (const auto* last = std::get_if<SaveLast>(&message)) {
    proto.mutable_save_last()->set_epoch(last->epoch);
    proto.mutable_save_last()->set_round(last->round);
    proto.mutable_save_last()->set_sender(last->sender);
  } else if (const auto* gathered = std::get_if<Gathered>(&message)) {
    *proto.mutable_gathered() = ToProto(*gathered);
  } else if (const auto* order = std::get_if<TraceOrder>(&message)) {
    *proto.mutable_trace_order() = ToProto(*order);
  } else if (const auto* answer = std::get_if<ClockAnswer>(&message)) {
    *proto.mutable_clock_answer() = ToProto(*answer);
  } else if (const auto* end = std::get_if<TraceEnd>(&message)) {
    proto.mutable_trace_end()->set_trace(end->trace);
    proto.mutable_trace_end()->set_drops(end->drops);
  } else if (const auto* lobby = std::get_if<LobbyGathered>(&message)) {
    *proto.mutable_lobby_gathered() = ToProto(*lobby);
  } else {
    proto.mutable_ask_to_leave();
  }
  return proto;
}

absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kWaiting:
      return Waiting{message.waiting()};
    case v1::CoordinatorMessage::kRefusal: {
      const auto code = static_cast<absl::StatusCode>(message.refusal().code());
      // absl::Status changes an unknown code to kUnknown. So if code() differs
      // from `code`, the code in the message is unknown.
      if (absl::Status(code, "").code() != code ||
          code == absl::StatusCode::kOk) {
        return UnknownEnum("a refusal's code", message.refusal().code());
      }
      return Refusal{absl::Status(code, message.refusal().text())};
    }
    case v1::CoordinatorMessage::kPrepareEpoch:
      return PrepareEpoch{message.prepare_epoch().target()};
    case v1::CoordinatorMessage::kEpochStart:
      return StartFromProto(message.epoch_start());
    case v1::CoordinatorMessage::kJobOver: {
      const JobState state = NEREUS_TRY(EnumFromProto<JobState>(
          "the job's state", message.job_over().state()));
      if (!IsOver(state)) {
        return InvalidArgumentError(
            "JobOver says that the job is ", JobStateName(state),
            ", must be finished, failed, stopped or lost");
      }
      const int64_t saved_rounds = message.job_over().saved_rounds();
      NEREUS_TRY(CheckAtLeast("saved rounds", saved_rounds, 0));
      return JobOver{state, message.job_over().reason(), saved_rounds - 1};
    }
    case v1::CoordinatorMessage::kSetFusion:
      return NEREUS_TRY(FusionFromProto(message.set_fusion()));
    case v1::CoordinatorMessage::kSaveLast: {
      const v1::SaveLast& last = message.save_last();
      NEREUS_TRY(CheckAtLeast("the last round", last.round(), 0));
      NEREUS_TRY(CheckAtLeast("the sender", last.sender(), 0));
      return SaveLast{last.epoch(), last.round(), last.sender()};
    }
    case v1::CoordinatorMessage::kGathered:
      return FromProto(message.gathered());
    case v1::CoordinatorMessage::kAskToLeave:
      return AskToLeave{};
    case v1::CoordinatorMessage::kTraceOrder:
      return FromProto(message.trace_order());
    case v1::CoordinatorMessage::kClockAnswer:
      return FromProto(message.clock_answer());
    case v1::CoordinatorMessage::kTraceEnd:
      return TraceEnd{message.trace_end().trace(), message.trace_end().drops()};
    case v1::CoordinatorMessage::kLobbyGathered:
      return FromProto(message.lobby_gathered());
    case v1::CoordinatorMessage::MESSAGE_NOT_SET:
      break;
  }
  return InvalidArgumentError("a coordinator's message is empty or unknown");
}

}  // namespace nereus
