#include "server/coordinator/checkpoint_ledger.h"

#include <algorithm>
#include <set>

namespace nereus {
namespace {

// Number of incomplete rounds: some shards may never write their parts.
constexpr size_t kOpenMax = 8;

// Returns the shards that write a part. The choice of blocks is not saved.
std::set<int> ShardsWithChunks(const Job& job) {
  std::set<int> shards;
  for (const Chunk& chunk : job.placement.chunks()) {
    if (chunk.layer != job.block_layer) shards.insert(chunk.shard);
  }
  return shards;
}

}  // namespace

int64_t CheckpointRecord::bytes() const {
  int64_t bytes = 0;
  for (const CheckpointFile& file : files) bytes += file.bytes;
  return bytes;
}

// Steps that an epoch does again replace their old stretches.
void CheckpointLedger::OnEpoch(const Job& job, bool restarted) {
  auto& stretches = state_.stretches;
  if (restarted) {
    state_.restarted_in = job.epoch;
    stretches.clear();
    parts_.clear();
  }
  std::erase_if(stretches, [&](const auto& stretch) {
    return stretch.first_step >= job.first_step;
  });
  stretches.push_back(
      {job.first_step, job.contributions_before, job.worker_count()});
  // No round before the newest checkpoint is asked for any more.
  const int64_t oldest = state_.newest.has_value() ? state_.newest->round : 0;
  while (stretches.size() > 1 && stretches[1].first_step <= oldest) {
    stretches.erase(stretches.begin());
  }
}

// All workers of a stretch contribute to each of its steps.
int64_t CheckpointLedger::ContributionsUpTo(int64_t round) const {
  const auto after = std::find_if(
      state_.stretches.rbegin(), state_.stretches.rend(),
      [&](const auto& stretch) { return stretch.first_step <= round + 1; });
  if (after == state_.stretches.rend()) return 0;
  return after->contributions_before +
         (round + 1 - after->first_step) * after->workers;
}

std::optional<CheckpointRecord> CheckpointLedger::OnPart(
    const Job& job, const CheckpointPart& part) {
  // The part is from before a restart, or of a round that is not wanted.
  if (part.epoch < state_.restarted_in || part.epoch > job.epoch ||
      state_.stretches.empty() ||
      part.round < state_.stretches.front().first_step ||
      (state_.newest.has_value() && part.round <= state_.newest->round)) {
    return std::nullopt;
  }
  auto& parts = parts_[part.round];
  parts[part.shard] = {part.file, part.bytes, part.crc};
  if (parts.size() < ShardsWithChunks(job).size()) {
    if (parts_.size() > kOpenMax) parts_.erase(parts_.begin());
    return std::nullopt;
  }
  CheckpointRecord record;
  record.round = part.round;
  record.contributions = ContributionsUpTo(part.round);
  for (const auto& [index, file] : parts) record.files.push_back(file);
  parts_.erase(part.round);
  return record;
}

// Parts of older rounds are of no use any more.
void CheckpointLedger::OnComplete(const CheckpointRecord& record) {
  if (state_.newest.has_value() && record.round <= state_.newest->round) return;
  state_.newest = record;
  parts_.erase(parts_.begin(), parts_.upper_bound(record.round));
}

}  // namespace nereus
