#include "server/admin/status_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace nereus {
namespace {

std::string NameOf(const JobStatus::Member& member) {
  return member.id.role == Role::kShard ? PeerName(member.id)
                                        : absl::StrCat("worker ", member.name);
}

std::string Rate(double steps_per_second) {
  return steps_per_second > 0
             ? absl::StrFormat("%.3g a second", steps_per_second)
             : "rate not known yet";
}

// How far a worker is behind the first, in steps. Where rounds wait for all,
// workers are in one step, and what they have said last is only older or newer.
std::string Behind(const JobStatus& status, const JobStatus::Member& member) {
  if (!status.partial || member.round <= kInitialRound) return "-";
  return absl::StrCat(std::max<int64_t>(0, status.step - 1 - member.round));
}

}  // namespace

std::string StatusTable(const JobStatus& status) {
  std::string text = absl::StrFormat("job %s, epoch %d, %s", status.job,
                                     status.epoch, JobStateName(status.state));
  if (!status.reason.empty()) absl::StrAppend(&text, ": ", status.reason);
  absl::StrAppend(&text, "\n");
  if (status.step > kInitialRound) {
    absl::StrAppendFormat(&text, "step %d, %s; layers: %s\n", status.step,
                          Rate(status.steps_per_second), status.plan);
  }
  if (!status.waiting.empty()) absl::StrAppend(&text, status.waiting, "\n");
  absl::StrAppendFormat(&text, "%-16s %-20s %-22s %7s %10s %12s %7s\n",
                        "member", "process", "address", "behind", "heartbeat",
                        "bytes", "chunks");
  for (const JobStatus::Member& member : status.members) {
    const bool shard = member.id.role == Role::kShard;
    const std::string heartbeat =
        member.left
            ? "left"
            : absl::StrFormat("%.1f s ago",
                              absl::ToDoubleSeconds(member.since_heartbeat));
    absl::StrAppendFormat(
        &text, "%-16s %-20s %-22s %7s %10s %12s %7s\n", NameOf(member),
        shard ? member.name : absl::StrCat("rank ", member.id.rank),
        member.data_address, shard ? "-" : Behind(status, member), heartbeat,
        shard ? absl::StrCat(member.stored_bytes) : "-",
        shard ? absl::StrCat(member.chunks) : "-");
  }
  for (const JobStatus::Member& member : status.members) {
    if (!member.stall.has_value()) continue;
    absl::StrAppend(&text, NameOf(member), " has waited ",
                    absl::FormatDuration(member.stall->waited), " for ",
                    member.stall->missing, " in round ", member.stall->round,
                    " of layer ", member.stalled_layer, "\n");
  }
  for (size_t shard = 0; shard < status.shard_servers.size(); ++shard) {
    const ShardServers& servers = status.shard_servers[shard];
    const bool away = servers.primary != static_cast<int>(shard);
    if (away) {
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
  nlohmann::ordered_json json;
  json["job"] = status.job;
  json["epoch"] = status.epoch;
  json["state"] = std::string(JobStateName(status.state));
  json["reason"] = status.reason;
  json["step"] = status.step;
  json["steps_per_second"] = status.steps_per_second;
  json["plan"] = status.plan;
  json["waiting"] = status.waiting;
  json["workers_expected"] = status.workers;
  json["shards_expected"] = status.shards;
  json["workers"] = nlohmann::ordered_json::array();
  json["shards"] = nlohmann::ordered_json::array();
  for (const JobStatus::Member& member : status.members) {
    nlohmann::ordered_json entry;
    const bool shard = member.id.role == Role::kShard;
    entry[shard ? "index" : "rank"] = member.id.rank;
    entry["name"] = member.name;
    entry["address"] = member.data_address;
    entry["seconds_since_heartbeat"] =
        absl::ToDoubleSeconds(member.since_heartbeat);
    entry["left"] = member.left;
    if (shard) {
      entry["bytes"] = member.stored_bytes;
      entry["chunks"] = member.chunks;
    } else {
      entry["round"] = member.round;
    }
    entry["stall"] = nullptr;
    if (member.stall.has_value()) {
      entry["stall"] = {
          {"layer", member.stalled_layer},
          {"round", member.stall->round},
          {"missing", member.stall->missing},
          {"seconds", absl::ToDoubleSeconds(member.stall->waited)}};
    }
    json[shard ? "shards" : "workers"].push_back(std::move(entry));
  }
  json["shard_servers"] = nlohmann::ordered_json::array();
  for (const ShardServers& servers : status.shard_servers) {
    nlohmann::ordered_json entry = {
        {"primary", servers.primary},
        {"backup", nullptr},
        {"backup_is_current", servers.backup_is_current}};
    if (servers.backup != -1) entry["backup"] = servers.backup;
    json["shard_servers"].push_back(std::move(entry));
  }
  json["checkpoint"] = nullptr;
  if (status.checkpoint.round > kInitialRound) {
    json["checkpoint"] = {{"round", status.checkpoint.round},
                          {"contributions", status.checkpoint.contributions},
                          {"bytes", status.checkpoint.bytes}};
  }
  json["checkpoint_failure"] = status.checkpoint.failure;
  return json.dump(2) + "\n";
}

}  // namespace nereus
