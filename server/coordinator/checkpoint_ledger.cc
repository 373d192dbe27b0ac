#include "server/coordinator/checkpoint_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nereus {
namespace {

// Largest number of incomplete rounds: some shards may never write their parts.
constexpr size_t kOpenMax = 8;

// Number of failed rounds to remember, the newest ones.
constexpr size_t kFailedKept = 16;

// Number of damaged checkpoints to remember, the last ones.
constexpr size_t kDamagedKept = 16;

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
  state_.damaged.clear();
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

std::vector<int64_t> CheckpointLedger::completing_rounds() const {
  std::vector<int64_t> rounds;
  for (const auto& [round, record] : completing_) rounds.push_back(round);
  return rounds;
}

std::vector<int64_t> CheckpointLedger::Abandon() {
  std::vector<int64_t> rounds = completing_rounds();
  for (auto& [round, record] : std::exchange(completing_, {})) {
    abandoned_.emplace(round, std::move(record));
  }
  return rounds;
}

// The driver writes manifests in order, so the first outcome for a round is
// that of its abandoned manifest.
std::optional<CheckpointRecord> CheckpointLedger::TakeAbandoned(int64_t round) {
  auto found = abandoned_.find(round);
  if (found == abandoned_.end()) return std::nullopt;
  CheckpointRecord record = std::move(found->second);
  abandoned_.erase(found);
  return record;
}

void CheckpointLedger::OnDamaged(int64_t round, std::string why) {
  if (setting_aside_.has_value()) return;
  setting_aside_ = round;
  auto& damaged = state_.damaged;
  std::erase_if(damaged, [&](const auto& each) { return each.round == round; });
  damaged.push_back({round, std::move(why)});
  if (damaged.size() > kDamagedKept) damaged.erase(damaged.begin());
}

std::optional<int64_t> CheckpointLedger::BeginLook() {
  if (!setting_aside_.has_value() || std::exchange(looks_, true)) {
    return std::nullopt;
  }
  return setting_aside_;
}

CheckpointNews CheckpointLedger::OnSetAside(const CheckpointSetAside& found) {
  const int64_t round = *std::exchange(setting_aside_, std::nullopt);
  looks_ = false;
  state_.newest = found.older;
  const int64_t steps = round - found.older->round;
  return {true,
          absl::StrCat("the checkpoint of round ", round,
                       " is damaged: ", state_.damaged.back().why, ". ",
                       found.folder.empty()
                           ? "Its folder keeps its name"
                           : absl::StrCat("Its folder is now ", found.folder),
                       ". The job goes back to the checkpoint of round ",
                       found.older->round, ", which costs ", steps,
                       steps == 1 ? " step" : " steps"),
          true};
}

std::string CheckpointLedger::DescribeDamaged() const {
  return absl::StrJoin(
      state_.damaged, "; ", [](std::string* out, const auto& each) {
        absl::StrAppend(out, "that of round ", each.round, ": ", each.why);
      });
}

// A checkpoint of a round before the planned one does not end the request.
bool CheckpointLedger::EndPlanned(int64_t round, const Job& job) {
  if (!planned_ || round < job.checkpoint_round) return false;
  wanted_ = std::exchange(wanted_again_, false);
  planned_ = false;
  return true;
}

}  // namespace nereus
