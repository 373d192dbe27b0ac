#include "common/messages/messages.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/messages/job_messages.h"
#include "common/messages/trace_messages.h"
#include "common/protocol/job_options.h"

namespace nereus {

// The coordinator compares the fields with the job, and its error names the
// field that differs (join_rules.h).
void Fields(Codec& c, JoinRequest& request) {
  c("protocol_version", request.protocol_version);
  c("build", request.build);
  c("job", request.job);
  c("role", request.role);
  c("shard", request.shard);
  c("launch_rank", request.launch_rank);
  c("incarnation", request.incarnation);
  c("name", request.name);
  c("data_address", request.data_address);
  c("settings", request.settings);
  c.AtMost("layers", kLayersMax);
  c("layers", request.layers);
  c("optimizer", request.caller.optimizer);
  c("scales_loss", request.caller.scales_loss);
  c("state_arrays", request.caller.state_arrays);
  c("has_checkpoints", request.has_checkpoints);
  c("products", request.products);
  c("host", request.host);
  c("turn_base", request.turn_base);
  c.Verify([&]() -> absl::Status {
    if (std::isfinite(request.turn_base.value_or(0))) return absl::OkStatus();
    return InvalidArgumentError("turn_base is ", *request.turn_base,
                                ", must be finite");
  });
}

static void Fields(Codec& c, Resume& resume) {
  c("job", resume.job);
  c("member", resume.member);
  c("incarnation", resume.incarnation);
  c("epoch", resume.epoch);
}

static void Fields(Codec& c, Heartbeat& beat) {
  c("begun_step", beat.begun_step);
  c.Unless(kInitialRound, "pushed_step", beat.pushed_step);
  c("went_back_in", beat.went_back_in);
  c("round", beat.round);
  c("stored_bytes", beat.stored_bytes);
  c("chunks", beat.chunks);
  c("stall", beat.stall);
  c("epoch", beat.epoch);
  c("current_backups", beat.current_backups);
  c("work", beat.work);
  c("activity", beat.activity);
}

static void Fields(Codec& c, LostPeer& lost) {
  c("epoch", lost.epoch);
  c("peer", lost.peer);
  c("reason", lost.reason);
  c("reached", lost.reached);
}

static void Fields(Codec& c, MachineReport::PeerLayer& layer) {
  c("layer", layer.layer);
  c("done_round", layer.done_round);
  c("contributors", layer.contributors);
}

static void Fields(Codec& c, EpochReport& report) {
  MachineReport& machine = report.report;
  c("target", report.target);
  c("epoch", report.epoch);
  c("begun_step", machine.begun_step);
  c("fetching", machine.fetching);
  c("peer_layers", machine.peer_layers);
  c("closed_rounds", machine.closed_rounds);
  c("verdicts", machine.verdicts);
  c("ready_to_switch", machine.ready_to_switch);
}

static void Fields(Codec& c, Leave& leave) {
  c("last_step", leave.last_step);
  c("epoch", leave.epoch);
  c("early", leave.early);
}

static void Fields(Codec& c, CheckpointPart& part) {
  c("epoch", part.epoch);
  c("shard", part.shard);
  c("round", part.round);
  c("file", part.file);
  c("bytes", part.bytes);
  c("crc", part.crc);
  c("error", part.error);
}

static void Fields(Codec& c, CheckpointDamaged& damaged) {
  c("epoch", damaged.epoch);
  c("round", damaged.round);
  c("reason", damaged.reason);
}

static std::string& OnlyText(Failure& failure) { return failure.reason; }

static void Fields(Codec& c, FusionTimed& timed) {
  c("trial", timed.trial);
  c("begun_step", timed.begun_step);
  c("step_seconds", timed.step_seconds);
}

static void Fields(Codec& c, ReadyToSwitch& ready) { c("epoch", ready.epoch); }

static void Fields(Codec& c, WantCheckpoint& want) {
  c("begun_step", want.begun_step);
}

static void Fields(Codec& c, ReplicaChecksums& checksums) {
  c("epoch", checksums.epoch);
  c("round", checksums.round);
  c("layers", checksums.layers);
  c("is_sample", checksums.is_sample);
  c("shard", checksums.shard);
  c("first_chunk", checksums.first_chunk);
}

// The coordinator compares the rows with its model (CheckFactorRows).
static void Fields(Codec& c, FactorRows& report) {
  c.AtMost("rows", kLayersMax);
  c("rows", report.rows);
}

// The fields of a number are those of the message around it.
static void CopyNumber(Codec& c, GatheringId& id) {
  c("step", id.step);
  c("index", id.index);
  c("went_back_in", id.went_back_in);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckStep("a gathering's step", id.step, kInitialRound));
    NEREUS_TRY(CheckAtLeast("a gathering's index", id.index, 0));
    if (id.step == kInitialRound || id.went_back_in == 0) {
      return absl::OkStatus();
    }
    return InvalidArgumentError("a gathering after step ", id.step,
                                " has went_back_in ", id.went_back_in);
  });
}

static void Fields(Codec& c, Gather& gather) {
  CopyNumber(c, gather.id);
  c("value", gather.value);
}

void Fields(Codec& c, Gathered& gathered) {
  CopyNumber(c, gathered.id);
  c("values", gathered.values);
  c("error", gathered.error);
}

static void CopyLobbyIndex(Codec& c, int32_t& index) {
  c("index", index);
  c.Verify([&] {
    return CheckRange("the index of a gathering in the lobby", index, 0,
                      kLobbyGatheringsMax - 1);
  });
}

static void Fields(Codec& c, LobbyGather& gather) {
  c("protocol_version", gather.protocol_version);
  c("build", gather.build);
  c("job", gather.job);
  c("number", gather.number);
  c("count", gather.count);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckAtLeast("a process's number", gather.number, 0));
    return CheckAtLeast("the number of processes", gather.count,
                        int64_t{gather.number} + 1);
  });
  CopyLobbyIndex(c, gather.index);
  c("value", gather.value);
  c("incarnation", gather.incarnation);
}

void Fields(Codec& c, LobbyGathered& gathered) {
  CopyLobbyIndex(c, gathered.index);
  c("values", gathered.values);
  c("error", gathered.error);
}

static std::string& OnlyText(Waiting& waiting) { return waiting.text; }

static void Fields(Codec& c, Refusal& refusal) {
  auto code = static_cast<int32_t>(refusal.why.code());
  std::string text(refusal.why.message());
  c("code", code);
  c("text", text);
  c.Verify([&]() -> absl::Status {
    refusal.why = absl::Status(static_cast<absl::StatusCode>(code), text);
    // absl::Status changes an unknown code to kUnknown.
    if (static_cast<int32_t>(refusal.why.code()) == code && !refusal.why.ok()) {
      return absl::OkStatus();
    }
    return InvalidArgumentError("Refusal.code has the unknown value ", code);
  });
}

static void Fields(Codec& c, PrepareEpoch& prepare) {
  c("target", prepare.target);
}

// `self`, the receiver, must be a member of the epoch. Otherwise the receiver
// would not find its own incarnation.
static absl::Status CheckStart(const EpochStart& start) {
  NEREUS_TRY(CheckEpochMembers(start.epoch_members, *start.job));
  if (start.lease < kLeaseMin || start.lease > kLeaseMax) {
    return InvalidArgumentError(
        "an epoch has a lease of ", absl::FormatDuration(start.lease),
        ", must be from ", absl::FormatDuration(kLeaseMin), " to ",
        absl::FormatDuration(kLeaseMax));
  }
  const bool seated = absl::c_any_of(
      start.epoch_members,
      [&](const EpochMember& each) { return each.id == start.self; });
  if (seated) return absl::OkStatus();
  return InvalidArgumentError(
      "the epoch that ", PeerName(start.self),
      " must enter has no entry for it in epoch_members");
}

static void Fields(Codec& c, EpochStart& start) {
  c("self", start.self);
  c("from_base", start.from_base);
  CopyJob(c, start.job, start.explanations);
  c("epoch_members", start.epoch_members);
  c("broken_links", start.broken_links);
  c("lease", start.lease);
  c.Verify([&] { return CheckStart(start); });
}

// The last round travels plus one, so that an absent field means that there is
// no checkpoint.
static void Fields(Codec& c, JobOver& over) {
  int64_t saved_rounds = over.saved_round + 1;
  c("state", over.state);
  c("reason", over.reason);
  c("saved_rounds", saved_rounds);
  c.Verify([&]() -> absl::Status {
    over.saved_round = saved_rounds - 1;
    if (IsOver(over.state))
      return CheckAtLeast("saved rounds", saved_rounds, 0);
    return InvalidArgumentError("JobOver says that the job is ",
                                JobStateName(over.state),
                                ", must be finished, failed, stopped or lost");
  });
}

// A coordinator of ours never sends a value outside these ranges.
static void Fields(Codec& c, SetFusion& set) {
  c("trial", set.trial);
  c("bytes", set.bytes);
  c("from_step", set.from_step);
  c("steps", set.steps);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckRange("a fusion threshold in bytes", set.bytes, 0,
                          kFusionBytesMax));
    NEREUS_TRY(CheckAtLeast("the steps of a trial", set.steps, 0));
    NEREUS_TRY(CheckAtLeast("the trial", set.trial, 0));
    return CheckAtLeast("the first step", set.from_step, 0);
  });
}

void Fields(Codec& c, TurnRule& rule) {
  c("base", rule.base);
  c.Unless(absl::ZeroDuration(), "cost", rule.cost);
  c.Verify([&]() -> absl::Status {
    if (!std::isfinite(rule.base)) {
      return InvalidArgumentError("TurnRule.base is ", rule.base,
                                  ", must be finite");
    }
    if (rule.cost >= absl::ZeroDuration() && rule.cost <= kTurnCostMax) {
      return absl::OkStatus();
    }
    return InvalidArgumentError(
        "TurnRule.cost is ", absl::FormatDuration(rule.cost),
        ", must be from 0", " to ", absl::FormatDuration(kTurnCostMax));
  });
}

static void Fields(Codec& c, SaveLast& last) {
  c("epoch", last.epoch);
  c("round", last.round);
  c("sender", last.sender);
  c.Verify([&]() -> absl::Status {
    NEREUS_TRY(CheckAtLeast("the last round", last.round, 0));
    return CheckAtLeast("the sender", last.sender, 0);
  });
}

static void Fields(Codec&, AskToLeave&) {}

static void Fields(Codec& c, TraceEnd& end) {
  c("trace", end.trace);
  c("drops", end.drops);
}

// Fields of the Protobuf messages, in the order of the alternatives.

static void Fields(Codec& c, MemberMessage& message) {
  c.OneOf({"join", "resume", "heartbeat", "lost_peer", "epoch_report", "leave",
           "checkpoint_part", "failure", "fusion_timed", "ready_to_switch",
           "measured", "want_checkpoint", "replica_checksums", "gather",
           "clock_question", "trace_part", "lobby_gather", "factor_rows",
           "checkpoint_damaged"},
          message);
}

static void Fields(Codec& c, CoordinatorMessage& message) {
  c.OneOf({"waiting", "refusal", "prepare_epoch", "epoch_start", "job_over",
           "set_fusion", "save_last", "gathered", "ask_to_leave", "trace_order",
           "clock_answer", "trace_end", "lobby_gathered", "turn_rule"},
          message);
}

v1::MemberMessage ToProto(const MemberMessage& message) {
  return Encoded<v1::MemberMessage>(message);
}

absl::StatusOr<MemberMessage> FromProto(const v1::MemberMessage& message) {
  return Decoded<MemberMessage>(message);
}

v1::CoordinatorMessage ToProto(const CoordinatorMessage& message) {
  return Encoded<v1::CoordinatorMessage>(message);
}

absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& message) {
  return Decoded<CoordinatorMessage>(message);
}

}  // namespace nereus
