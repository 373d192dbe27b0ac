#include "server/coordinator/checkpoint_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

// Largest number of incomplete rounds: some shards may never write their parts.
constexpr size_t kOpenMax = 8;

// Number of failed rounds to remember, the newest ones.
constexpr size_t kFailedKept = 16;

// Returns the shards that write a part of a checkpoint: all that have a chunk
// outside the block layer, which is not saved.
std::set<int> ShardsWithChunks(const Job& job) {
  std::set<int> shards;
  for (const Chunk& chunk : job.placement.chunks()) {
    if (chunk.layer != job.pool.layer) shards.insert(chunk.shard);
  }
  return shards;
}

}  // namespace

int64_t CheckpointRecord::bytes() const {
  int64_t bytes = 0;
  for (const CheckpointFile& file : files) bytes += file.bytes;
  return bytes;
}

bool CheckpointLedger::Request(bool has_begun) {
  wanted_again_ = wanted_again_ || (planned_ && has_begun);
  return !std::exchange(wanted_, true);
}

// The new stretch replaces older stretches that begin with the same step or
// later: workers do these steps again.
void CheckpointLedger::OnEpoch(const Job& job, bool from_base) {
  planned_ = wanted_;
  wanted_again_ = false;  // No worker has begun the round planned now.
  auto& stretches = state_.stretches;
  if (from_base) {
    failed_rounds_.clear();  // The workers do these rounds again.
    state_.restarted_in = job.epoch;
    stretches.clear();
    parts_.clear();
  }
  std::erase_if(stretches, [&](const auto& stretch) {
    return stretch.first_step >= job.history.first_step;
  });
  stretches.push_back({job.history.first_step, job.history.contributions_before,
                       job.worker_count()});
  // Drops stretches that end before the newest checkpoint: no later checkpoint
  // needs them.
  const int64_t oldest = state_.newest.has_value() ? state_.newest->round : 0;
  while (stretches.size() > 1 && stretches[1].first_step <= oldest) {
    stretches.erase(stretches.begin());
  }
}

// Each worker of a stretch contributes once to each of its steps.
int64_t CheckpointLedger::ContributionsUpTo(int64_t round) const {
  const auto after = std::find_if(
      state_.stretches.rbegin(), state_.stretches.rend(),
      [&](const auto& stretch) { return stretch.first_step <= round + 1; });
  if (after == state_.stretches.rend()) return 0;
  return after->contributions_before +
         (round + 1 - after->first_step) * after->workers;
}

bool CheckpointLedger::Counts(const Job& job,
                              const CheckpointPart& part) const {
  return part.epoch >= state_.restarted_in && part.epoch <= job.epoch &&
         !state_.stretches.empty() &&
         part.round >= state_.stretches.front().first_step &&
         part.round > saved_round();
}

std::optional<CheckpointRecord> CheckpointLedger::OnPart(
    const Job& job, const CheckpointPart& part) {
  if (!Counts(job, part)) return std::nullopt;
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
  completing_[part.round] = record;
  return record;
}

// Drops the parts of `record` and of older rounds, which are no longer needed.
void CheckpointLedger::OnComplete(const CheckpointRecord& record) {
  if (state_.newest.has_value() && record.round <= state_.newest->round) return;
  state_.newest = record;
  parts_.erase(parts_.begin(), parts_.upper_bound(record.round));
}

CheckpointNews CheckpointLedger::OnWritten(int64_t round,
                                           const absl::Status& written,
                                           const Job& job) {
  const CheckpointRecord record = completing_.extract(round).mapped();
  if (!written.ok())
    return OnFailure(round, std::string(written.message()), job);
  OnComplete(record);
  // Keeps the reason of a failure if the failed round is later than `round`.
  if (failed_rounds_.empty() || *failed_rounds_.rbegin() <= round) {
    failure_.clear();
  }
  EndPlanned(round, job);
  return {false,
          absl::StrCat("checkpoint of round ", round, ": ", record.bytes(),
                       " bytes in ", record.files.size(), " files"),
          true};
}

CheckpointNews CheckpointLedger::OnFailure(int64_t round,
                                           const std::string& why,
                                           const Job& job) {
  failure_ = why;
  failed_rounds_.insert(round);
  if (failed_rounds_.size() > kFailedKept) {
    failed_rounds_.erase(failed_rounds_.begin());
  }
  // The failure of a later round does not end the request: the planned round
  // may still become complete.
  return {true, absl::StrCat("no checkpoint of round ", round, ": ", why),
          round == job.checkpoint_round && EndPlanned(round, job)};
}

// A checkpoint of a round before the planned one does not end the request.
bool CheckpointLedger::EndPlanned(int64_t round, const Job& job) {
  if (!planned_ || round < job.checkpoint_round) return false;
  wanted_ = std::exchange(wanted_again_, false);
  planned_ = false;
  return true;
}

}  // namespace nereus
