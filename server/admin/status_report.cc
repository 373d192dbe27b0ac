#include "server/admin/status_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nereus {
namespace {

std::string Round(int64_t round) {
  return round <= kInitialRound ? "-" : absl::StrCat(round);
}

}  // namespace

std::string StatusTable(const JobStatus& status) {
  std::string text = absl::StrFormat("job %s, epoch %d, %s", status.job,
                                     status.epoch, JobStateName(status.state));
  if (!status.reason.empty()) absl::StrAppend(&text, ": ", status.reason);
  absl::StrAppend(&text, "\n");
  if (!status.waiting.empty()) absl::StrAppend(&text, status.waiting, "\n");
  absl::StrAppendFormat(&text, "%-11s %-24s %-22s %8s %10s %12s %7s\n",
                        "member", "name", "address", "round", "heartbeat",
                        "bytes", "chunks");
  for (const JobStatus::Member& member : status.members) {
    const bool shard = member.id.role == Role::kShard;
    const std::string heartbeat =
        member.left
            ? "left"
            : absl::StrFormat("%.1f s ago",
                              absl::ToDoubleSeconds(member.since_heartbeat));
    absl::StrAppendFormat(&text, "%-11s %-24s %-22s %8s %10s %12s %7s\n",
                          PeerName(member.id), member.name, member.data_address,
                          shard ? "-" : Round(member.round), heartbeat,
                          shard ? absl::StrCat(member.stored_bytes) : "-",
                          shard ? absl::StrCat(member.chunks) : "-");
  }
  return text;
}

std::string StatusJson(const JobStatus& status) {
  nlohmann::ordered_json json;
  json["job"] = status.job;
  json["epoch"] = status.epoch;
  json["state"] = std::string(JobStateName(status.state));
  json["reason"] = status.reason;
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
    json[shard ? "shards" : "workers"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

}  // namespace nereus
