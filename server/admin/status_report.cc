#include "server/admin/status_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/admin/command.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// Returns the name that messages and logs use for a member.
std::string NameOf(const JobStatus::Member& member) {
  return member.id.role == Role::kShard ? PeerName(member.id)
                                        : absl::StrCat("worker ", member.name);
}

// Returns the number of steps by which a worker is behind the first worker. If
// rounds wait for all workers, returns "-": then all workers are in one step,
// and only the age of their reports differs.
std::string Behind(const JobStatus& status, const JobStatus::Member& member) {
  if (!status.partial || member.round <= kInitialRound) return "-";
  return absl::StrCat(std::max<int64_t>(0, status.step - 1 - member.round));
}

// Returns one line of the table of members.
template <typename... Cells>
std::string Row(const Cells&... cells) {
  return absl::StrFormat("%-16s %-20s %-22s %5s %7s %10s %12s %7s\n", cells...);
}

// Returns the line of a member. Only servers have bytes and chunks. Only
// workers can be behind.
std::string MemberRow(const JobStatus& status,
                      const JobStatus::Member& member) {
  const double silent_for = absl::ToDoubleSeconds(member.since_heartbeat);
  const std::string heartbeat =
      member.left ? "left" : absl::StrFormat("%.1f s ago", silent_for);
  const std::string host = member.split        ? "own"
                           : member.host == -1 ? "-"
                                               : absl::StrCat(member.host);
  if (member.id.role == Role::kShard) {
    return Row(NameOf(member), member.name, member.data_address, host, "-",
               heartbeat, absl::StrCat(member.stored_bytes),
               absl::StrCat(member.chunks));
  }
  return Row(NameOf(member), absl::StrCat("rank ", member.id.rank),
             member.data_address, host, Behind(status, member), heartbeat, "-",
             "-");
}

// Returns a member with the fields of its role.
Json MemberJson(const JobStatus::Member& member) {
  const bool is_shard = member.id.role == Role::kShard;
  Json json = {{is_shard ? "index" : "rank", member.id.rank},
               {"name", member.name},
               {"address", member.data_address},
               {"host", member.host == -1 ? Json() : Json(member.host)},
               {"split", member.split},
               {"seconds_since_heartbeat",
                absl::ToDoubleSeconds(member.since_heartbeat)},
               {"left", member.left}};
  if (is_shard) {
    json["bytes"] = member.stored_bytes;
    json["chunks"] = member.chunks;
  } else {
    json["round"] = member.round;
  }
  json["stall"] = nullptr;
  if (member.stall.has_value()) {
    json["stall"] = {{"layer", member.stalled_layer},
                     {"round", member.stall->round},
                     {"missing", member.stall->missing},
                     {"seconds", absl::ToDoubleSeconds(member.stall->waited)}};
  }
  return json;
}

}  // namespace

std::string StatusTable(const JobStatus& status) {
  std::string text = absl::StrFormat("job %s, epoch %d, %s", status.job,
                                     status.epoch, JobStateName(status.state));
  if (!status.reason.empty()) absl::StrAppend(&text, ": ", status.reason);
  absl::StrAppend(&text, "\n");
  if (status.step > kInitialRound) {
    const std::string rate =
        status.steps_per_second > 0
            ? absl::StrFormat("%.3g steps a second", status.steps_per_second)
            : "rate not known yet";
    absl::StrAppend(&text, "step ", status.step, ", ", rate,
                    "; layers: ", status.plan, "\n");
  }
  if (!status.waiting.empty()) absl::StrAppend(&text, status.waiting, "\n");
  text += Row("member", "process", "address", "host", "behind", "heartbeat",
              "bytes", "chunks");
  for (const JobStatus::Member& member : status.members) {
    text += MemberRow(status, member);
  }
  for (const JobStatus::Member& member : status.members) {
    if (!member.split) continue;
    absl::StrAppend(&text, NameOf(member), " is a host of its own: it and ",
                    "another worker of its host could not connect\n");
  }
  for (const JobStatus::Member& member : status.members) {
    if (!member.stall.has_value()) continue;
    absl::StrAppend(&text, NameOf(member), " has waited ",
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
  if (status.checkpoint.round > kInitialRound) {
    absl::StrAppend(&text, "newest checkpoint: round ", status.checkpoint.round,
                    ", ", status.checkpoint.bytes, " bytes\n");
  }
  if (!status.checkpoint.failure.empty()) {
    absl::StrAppend(&text, "the last checkpoint that failed: ",
                    status.checkpoint.failure, "\n");
  }
  return text;
}

std::string StatusJson(const JobStatus& status) {
  Json workers = Json::array();
  Json shards = Json::array();
  for (const JobStatus::Member& member : status.members) {
    (member.id.role == Role::kShard ? shards : workers)
        .push_back(MemberJson(member));
  }
  Json shard_servers = Json::array();
  for (const ShardServers& servers : status.shard_servers) {
    shard_servers.push_back(
        {{"primary", servers.primary},
         {"backup", servers.backup == -1 ? Json() : Json(servers.backup)},
         {"backup_is_current", servers.backup_is_current}});
  }
  Json checkpoint;  // null
  if (status.checkpoint.round > kInitialRound) {
    checkpoint = {{"round", status.checkpoint.round},
                  {"contributions", status.checkpoint.contributions},
                  {"bytes", status.checkpoint.bytes}};
  }
  return FormatJson({{"job", status.job},
                     {"epoch", status.epoch},
                     {"state", std::string(JobStateName(status.state))},
                     {"reason", status.reason},
                     {"step", status.step},
                     {"steps_per_second", status.steps_per_second},
                     {"plan", status.plan},
                     {"waiting", status.waiting},
                     {"workers_expected", status.workers},
                     {"shards_expected", status.shards},
                     {"workers", std::move(workers)},
                     {"shards", std::move(shards)},
                     {"shard_servers", std::move(shard_servers)},
                     {"checkpoint", std::move(checkpoint)},
                     {"checkpoint_failure", status.checkpoint.failure}}) +
         "\n";
}

}  // namespace nereus
