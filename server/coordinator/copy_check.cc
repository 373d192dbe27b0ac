#include "server/coordinator/copy_check.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/coordinator/coordinator_options.h"

namespace nereus {
namespace {

// Returns the chunks of a shard, in the order in which its servers number them.
std::vector<Chunk> ChunksOf(const Job& job, int32_t shard) {
  std::vector<Chunk> chunks;
  for (const Chunk& chunk : job.placement.chunks()) {
    if (chunk.shard == shard) chunks.push_back(chunk);
  }
  return chunks;
}

// Checks that the member can have the shard, and that the report has two
// checksums for each of some chunks of it.
absl::Status Check(const MemberRecord& member, const ReplicaChecksums& report,
                   const Job& job) {
  NEREUS_TRY(CheckStep("the round of a copy", report.round));
  const int32_t shard = *report.shard;
  if (member.is_worker() || shard < 0 || shard >= job.shards()) {
    return InvalidArgumentError(member.Name(), " reports checksums of shard ",
                                shard, " of ", job.shards());
  }
  const auto count = static_cast<size_t>(absl::c_count_if(
      job.placement.chunks(),
      [&](const Chunk& chunk) { return chunk.shard == shard; }));
  const size_t reported = report.layers.size() / 2;
  const auto first = static_cast<size_t>(report.first_chunk);
  if (report.first_chunk < 0 || report.layers.size() % 2 != 0 ||
      first > count || reported > count - first) {
    return InvalidArgumentError(
        member.Name(), " reports ", report.layers.size(),
        " checksums from chunk ", report.first_chunk,
        " on, two for each chunk; shard ", shard, " has ", count, " chunks");
  }
  return absl::OkStatus();
}

std::string Hex(uint32_t checksum) {
  return absl::StrCat(absl::Hex(checksum, absl::kZeroPad8));
}

}  // namespace

absl::StatusOr<std::optional<Announce>> CopyCheck::OnChecksums(
    const MemberRecord& member, const ReplicaChecksums& checksums,
    const Job& job) {
  NEREUS_TRY(Check(member, checksums, job));
  if (checksums.epoch < first_epoch_) return std::nullopt;
  std::map<int64_t, Report>& rounds = reports_[*checksums.shard];
  const Report report{member.id, member.Describe(), checksums};
  const auto [first, is_new] = rounds.try_emplace(checksums.round, report);
  if (is_new) {
    if (rounds.size() > kRoundsMax) rounds.erase(rounds.begin());
    return std::nullopt;
  }
  const ReplicaChecksums& before = first->second.checksums;
  // In another epoch a server may compare other chunks.
  const bool same_chunks = before.first_chunk == checksums.first_chunk &&
                           before.layers.size() == checksums.layers.size();
  if (first->second.server == member.id || !same_chunks ||
      before.layers == checksums.layers) {
    return std::nullopt;
  }
  return Difference(first->second, report, job);
}

void CopyCheck::Clear(uint64_t epoch) {
  reports_.clear();
  first_epoch_ = epoch;
}

Announce CopyCheck::Difference(const Report& one, const Report& other,
                               const Job& job) {
  const ReplicaChecksums& ours = one.checksums;
  const ReplicaChecksums& theirs = other.checksums;
  const size_t at = static_cast<size_t>(
      absl::c_mismatch(ours.layers, theirs.layers).first - ours.layers.begin());
  const Chunk chunk = ChunksOf(
      job, *ours.shard)[static_cast<size_t>(ours.first_chunk) + at / 2];
  const std::string& layer = job.layers[chunk.layer].name;
  return {
      true,
      absl::StrCat("the two copies of shard ", *ours.shard,
                   " differ after step ", ours.round, ": ",
                   at % 2 == 0 ? "the parameters" : "the optimizer state",
                   " of layer ", layer, ", chunk ", chunk.index,
                   ", have checksum ", Hex(ours.layers[at]), " on ", one.name,
                   " and ", Hex(theirs.layers[at]), " on ", other.name,
                   ". The memory of one of these machines has changed a "
                   "value: check both, and go on from an earlier "
                   "checkpoint (--restore)"),
      {LogEvent::kReplicas, ours.round, layer}};
}

}  // namespace nereus
