#include "server/report/status_report.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/json_text.h"
#include "common/base/names.h"
#include "common/base/printable.h"
#include "common/base/text_table.h"
#include "nlohmann/json.hpp"
#include "server/report/job_health.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;
using Member = JobStatus::Member;

// Largest numbers of layers and events in the text. JSON has all.
constexpr int kLayersShown = 5;
constexpr int kEventsShown = 5;

constexpr Named<LateCause> kCauseNames[] = {
    {LateCause::kNone, ""},
    {LateCause::kComputing, "computing"},
    {LateCause::kLink, "link"}};

// Returns the number of steps by which a worker is behind the first worker. If
// rounds wait for all workers, returns "-": then all workers are in one step,
// and only the age of their reports differs.
std::string Behind(const JobStatus& status, const Member& member) {
  if (!status.steps.partial || member.round <= kInitialRound) return "-";
  return absl::StrCat(
      std::max<int64_t>(0, status.steps.begun - 1 - member.round));
}

std::string HostText(const Member& member) {
  if (member.split) return "own";
  return member.host == -1 ? "-" : absl::StrCat(member.host);
}

std::string HeartbeatText(const Member& member) {
  if (member.left) return "left";
  if (member.work.has_value()) return DescribeWork(*member.work);
  return absl::StrFormat("%.1f s ago",
                         absl::ToDoubleSeconds(member.since_heartbeat));
}

// Returns by how much of each step the others wait for a member, and why.
std::string LateText(const Member& member) {
  if (!member.pace.has_value() || member.pace->cause == LateCause::kNone) {
    return "-";
  }
  return absl::StrCat(ShortTime(member.pace->late), ", ",
                      NameOf<kCauseNames>(member.pace->cause));
}

// Returns a time of a worker's step, or "-" if it is not known.
std::string StepText(const Member& member,
                     absl::Duration (*time)(const PhaseTimes&)) {
  const bool is_known = member.pace.has_value() &&
                        member.pace->step.total() > absl::ZeroDuration();
  return is_known ? ShortTime(time(member.pace->step)) : "-";
}

// Returns the members of a role. Workers that are late come first, the latest
// before all others.
std::vector<const Member*> MembersOf(const JobStatus& status, Role role) {
  std::vector<const Member*> members;
  for (const Member& member : status.members) {
    if (member.id.role == role) members.push_back(&member);
  }
  const auto late = [](const Member* member) {
    return member->pace.has_value() ? member->pace->late : absl::ZeroDuration();
  };
  absl::c_stable_sort(members, [&](const Member* a, const Member* b) {
    return late(a) > late(b);
  });
  return members;
}

std::string MembersText(const JobStatus& status) {
  TextTable workers("lrlrrrrrl");
  workers.Row("worker", "rank", "address", "host", "behind", "heartbeat",
              "computing", "waiting", "late");
  for (const Member* worker : MembersOf(status, Role::kWorker)) {
    workers.Row(
        worker->name, worker->id.rank, worker->data_address, HostText(*worker),
        Behind(status, *worker), HeartbeatText(*worker),
        StepText(*worker,
                 [](const PhaseTimes& times) { return times.computing(); }),
        StepText(*worker,
                 [](const PhaseTimes& times) { return times.waiting; }),
        LateText(*worker));
  }
  TextTable servers("lllrrrrl");
  servers.Row("server", "process", "address", "host", "heartbeat", "bytes",
              "chunks", "late");
  for (const Member* server : MembersOf(status, Role::kShard)) {
    servers.Row(MemberName(*server), server->name, server->data_address,
                HostText(*server), HeartbeatText(*server), server->stored_bytes,
                server->chunks, LateText(*server));
  }
  return workers.Text() + servers.Text();
}

// Returns a line for each member, or each shard, with which something is wrong.
std::string TroubleText(const JobStatus& status) {
  std::string text;
  for (const Member& member : status.members) {
    if (!member.split) continue;
    absl::StrAppend(&text, MemberName(member), " is a host of its own: it and ",
                    "another worker of its host could not connect\n");
  }
  for (const Member& member : status.members) {
    if (!member.stall.has_value()) continue;
    absl::StrAppend(&text, MemberName(member), " has waited ",
                    absl::FormatDuration(absl::Trunc(member.stall->waited,
                                                     absl::Milliseconds(100))),
                    " for ", member.stall->missing, " in round ",
                    member.stall->round, " of layer ", member.stalled_layer,
                    "\n");
  }
  for (size_t shard = 0; shard < status.shard_servers.size(); ++shard) {
    const ShardServers& servers = status.shard_servers[shard];
    if (servers.primary != static_cast<int>(shard)) {
      absl::StrAppend(&text, "the chunks of shard ", shard, " are served by ",
                      "shard ", servers.primary, "\n");
    }
    if (servers.backup_is_current) continue;
    absl::StrAppend(&text, "the chunks of shard ", shard, " have no ",
                    servers.backup == -1 ? "backup" : "current backup yet",
                    "\n");
  }
  for (const std::string& newcomer : status.newcomers) {
    absl::StrAppend(&text, newcomer, "\n");
  }
  return text;
}

std::string LayersText(const JobStatus& status) {
  if (status.plan.layers.empty()) return "";
  TextTable table("lllrl");
  table.Row("layer", "scheme", "wire", "bytes a step", "reason");
  for (const PlanStatus::Layer& layer : status.plan.layers) {
    if (&layer - status.plan.layers.data() == kLayersShown) break;
    table.Row(layer.name, SchemeName(layer.route.scheme),
              WireTypeName(layer.route.wire), layer.bytes(),
              layer.explanation.reason);
  }
  return table.Text();
}

std::string CheckpointText(const CheckpointStatus& checkpoint) {
  std::string text;
  if (checkpoint.round > kInitialRound) {
    absl::StrAppend(&text, "newest checkpoint: round ", checkpoint.round, ", ",
                    checkpoint.bytes, " bytes");
    if (checkpoint.since < absl::InfiniteDuration()) {
      absl::StrAppend(&text, ", ", ShortTime(checkpoint.since), " ago");
    }
    absl::StrAppend(&text, "\n");
  }
  if (!checkpoint.failure.empty()) {
    absl::StrAppend(
        &text, "the last checkpoint that failed: ", checkpoint.failure, "\n");
  }
  if (!checkpoint.damage.empty()) {
    absl::StrAppend(&text, "damaged and set aside: ", checkpoint.damage, "\n");
  }
  return text;
}

// Returns `status` with all texts in printable form (Printable).
JobStatus Printed(JobStatus status) {
  const auto print = [](std::string& text) { text = Printable(text); };
  for (std::string* text :
       {&status.job, &status.plan.schemes, &status.reason, &status.waiting,
        &status.checkpoint.failure, &status.checkpoint.damage}) {
    print(*text);
  }
  for (PlanStatus::Layer& layer : status.plan.layers) print(layer.name);
  for (Member& member : status.members) {
    print(member.name);
    print(member.data_address);
    print(member.stalled_layer);
    if (member.stall.has_value()) print(member.stall->missing);
  }
  for (JobStatus::Event& event : status.events) print(event.text);
  for (JobStatus::DiskWait& wait : status.disk_waits) {
    print(wait.what);
    print(wait.error);
  }
  for (std::string& newcomer : status.newcomers) print(newcomer);
  return status;
}

std::string TimeText(absl::Time at) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone());
}

std::string EventsText(const JobStatus& status) {
  std::string text;
  const auto first =
      std::max<int64_t>(0, std::ssize(status.events) - kEventsShown);
  for (auto event = status.events.begin() + first; event != status.events.end();
       ++event) {
    absl::StrAppend(&text, TimeText(event->at), event->bad ? " WARNING " : " ",
                    event->text, "\n");
  }
  return text;
}

// Returns a time in seconds; null if it is not known.
Json SecondsJson(absl::Duration time) {
  if (time == absl::InfiniteDuration()) return nullptr;
  return absl::ToDoubleSeconds(time);
}

Json LateJson(const Member& member) {
  const Pace pace = member.pace.value_or(Pace());
  Json cause;  // null
  if (pace.cause != LateCause::kNone) {
    cause = std::string(NameOf<kCauseNames>(pace.cause));
  }
  return {{"seconds", absl::ToDoubleSeconds(pace.late)},
          {"cause", std::move(cause)},
          {"seconds_total", absl::ToDoubleSeconds(member.late_total)}};
}

Json StallJson(const Member& member) {
  if (!member.stall.has_value()) return nullptr;
  return {{"layer", member.stalled_layer},
          {"round", member.stall->round},
          {"missing", member.stall->missing},
          {"seconds", absl::ToDoubleSeconds(member.stall->waited)}};
}

// Returns the mean times of a worker's step; null if they are not known.
Json StepJson(const Member& member) {
  if (!member.pace.has_value()) return nullptr;
  const PhaseTimes& step = member.pace->step;
  if (step.total() == absl::ZeroDuration()) return nullptr;
  return {{"forward", absl::ToDoubleSeconds(step.forward)},
          {"backward", absl::ToDoubleSeconds(step.backward)},
          {"other", absl::ToDoubleSeconds(step.other)},
          {"waiting", absl::ToDoubleSeconds(step.waiting)},
          {"turn", absl::ToDoubleSeconds(step.turn)}};
}

// Returns the busiest link of a member; null if it has none.
Json BusiestJson(const Member& member) {
  if (!member.pace.has_value() || !member.pace->busiest.has_value()) {
    return nullptr;
  }
  const BusyLink& link = *member.pace->busiest;
  return {
      {"peer", PeerName(link.peer)},
      {"busy", link.share},
      {"others_busy", link.others.has_value() ? Json(*link.others) : Json()}};
}

// Returns the long work of a member.
Json WorkJson(const Member& member) {
  if (!member.work.has_value()) return Json();
  const bool restores = member.work->kind == LongWork::Kind::kRestore;
  return {{"kind", restores ? "restore" : "multiply"},
          {"done", member.work->done},
          {"total", member.work->total}};
}

// Returns a member with the fields of its role.
Json MemberJson(const Member& member) {
  const bool is_shard = member.id.role == Role::kShard;
  Json json = {
      {is_shard ? "index" : "rank", member.id.rank},
      {"name", member.name},
      {"address", member.data_address},
      {"host", member.host == -1 ? Json() : Json(member.host)},
      {"split", member.split},
      {"seconds_since_heartbeat",
       absl::ToDoubleSeconds(member.since_heartbeat)},
      {"left", member.left},
      {"late", LateJson(member)},
      {"link_busy",
       member.pace.has_value() ? Json(member.pace->link_share) : Json()},
      {"busiest_link", BusiestJson(member)},
      {"work", WorkJson(member)},
      {"stall", StallJson(member)}};
  if (is_shard) {
    json["bytes"] = member.stored_bytes;
    json["chunks"] = member.chunks;
  } else {
    json["round"] = member.round;
    json["step_seconds"] = StepJson(member);
  }
  return json;
}

Json MembersJson(const JobStatus& status, Role role) {
  Json members = Json::array();
  for (const Member& member : status.members) {
    if (member.id.role == role) members.push_back(MemberJson(member));
  }
  return members;
}

Json ShardServersJson(const JobStatus& status) {
  Json shards = Json::array();
  for (const ShardServers& servers : status.shard_servers) {
    shards.push_back(
        {{"primary", servers.primary},
         {"backup", servers.backup == -1 ? Json() : Json(servers.backup)},
         {"backup_is_current", servers.backup_is_current}});
  }
  return shards;
}

Json LayersJson(const JobStatus& status) {
  Json layers = Json::array();
  for (const PlanStatus::Layer& layer : status.plan.layers) {
    layers.push_back({{"name", layer.name},
                      {"scheme", std::string(SchemeName(layer.route.scheme))},
                      {"wire", std::string(WireTypeName(layer.route.wire))},
                      {"parameters", layer.parameters},
                      {"bytes", layer.bytes()},
                      {"sync_seconds", layer.sync_time.has_value()
                                           ? SecondsJson(*layer.sync_time)
                                           : nullptr},
                      {"reason", layer.explanation.reason}});
  }
  return layers;
}

Json CheckpointJson(const CheckpointStatus& checkpoint) {
  if (checkpoint.round <= kInitialRound) return nullptr;
  return {{"round", checkpoint.round},
          {"contributions", checkpoint.contributions},
          {"bytes", checkpoint.bytes},
          {"seconds_since", SecondsJson(checkpoint.since)}};
}

Json TimesJson(const TimeHistogram& times) {
  return {{"count", times.count()}, {"seconds_sum", SecondsJson(times.sum())}};
}

Json CountsJson(const JobCounts& counts) {
  return {{"epochs", counts.epochs},
          {"epochs_by_reason", counts.epochs_by_reason},
          {"plan_changes", counts.plan_changes},
          {"workers_lost", counts.workers_lost},
          {"servers_lost", counts.servers_lost},
          {"workers_replaced", TimesJson(counts.workers_replaced)},
          {"servers_replaced", TimesJson(counts.servers_replaced)},
          {"checkpoints", counts.checkpoints},
          {"checkpoints_failed", counts.checkpoints_failed}};
}

Json EventsJson(const JobStatus& status) {
  Json events = Json::array();
  for (const JobStatus::Event& event : status.events) {
    events.push_back(
        {{"time", TimeText(event.at)},
         {"warning", event.bad},
         {"event", std::string(NameOf<kLogEventNames>(event.event))},
         {"member", event.member.empty() ? Json() : Json(event.member)},
         {"text", event.text}});
  }
  return events;
}

Json DiskWaitsJson(const JobStatus& status) {
  Json waits = Json::array();
  for (const JobStatus::DiskWait& wait : status.disk_waits) {
    waits.push_back({{"what", wait.what},
                     {"seconds", absl::ToDoubleSeconds(wait.time)},
                     {"error", wait.error},
                     {"messages", wait.messages}});
  }
  return waits;
}

// Returns the measured and the predicted time of a step.
Json JobStepJson(const JobStatus& status) {
  const PhaseTimes step = MedianStep(status);
  const auto known = [](absl::Duration time) {
    return time > absl::ZeroDuration() ? SecondsJson(time) : Json();
  };
  return {{"measured", known(step.total())},
          {"waiting", step.total() > absl::ZeroDuration()
                          ? SecondsJson(step.waiting)
                          : Json()},
          {"predicted", known(status.steps.predicted)}};
}

}  // namespace

// Names, addresses and errors come from the members: a terminal must not carry
// out what they contain.
std::string StatusTable(const JobStatus& unprinted) {
  const JobStatus status = Printed(unprinted);
  std::string text = absl::StrCat(Judge(status).text, "\n");
  absl::StrAppendFormat(&text, "job %s, epoch %d, %s", status.job, status.epoch,
                        JobStateName(status.state));
  if (status.steps.begun > kInitialRound) {
    const std::string rate =
        status.steps.per_second > 0
            ? absl::StrFormat("%.3g steps a second", status.steps.per_second)
            : "rate not known yet";
    absl::StrAppend(&text, ", step ", status.steps.begun, ", ", rate,
                    "; layers: ", status.plan.schemes);
  }
  return absl::StrCat(text, "\n", MembersText(status), TroubleText(status),
                      LayersText(status), CheckpointText(status.checkpoint),
                      EventsText(status));
}

std::string StatusJson(const JobStatus& status) {
  const JobHealth health = Judge(status);
  return FormatJson(
             {{"health", HealthName(health.kind)},
              {"summary", health.text},
              {"job", status.job},
              {"epoch", status.epoch},
              {"state", std::string(JobStateName(status.state))},
              {"reason", status.reason},
              {"step", status.steps.begun},
              {"steps_per_second", status.steps.per_second},
              {"seconds_since_step", SecondsJson(status.steps.since_begun)},
              {"plan", status.plan.schemes},
              {"waiting", status.waiting},
              {"step_seconds", JobStepJson(status)},
              {"workers_expected", status.workers},
              {"shards_expected", status.shards},
              {"workers", MembersJson(status, Role::kWorker)},
              {"shards", MembersJson(status, Role::kShard)},
              {"shard_servers", ShardServersJson(status)},
              {"layers", LayersJson(status)},
              {"layers_left_out", status.plan.layers_left_out},
              {"checkpoint", CheckpointJson(status.checkpoint)},
              {"checkpoint_failure", status.checkpoint.failure},
              {"checkpoint_damage", status.checkpoint.damage},
              {"counts", CountsJson(status.counts)},
              {"disk_waits", DiskWaitsJson(status)},
              {"newcomers", status.newcomers},
              {"events", EventsJson(status)}}) +
         "\n";
}

}  // namespace nereus
