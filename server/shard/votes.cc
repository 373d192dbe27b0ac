#include "server/shard/votes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {

namespace {

// True if the server has rounds to close, or tells the workers the verdicts.
bool NeedsVerdicts(const Job& job, int server) {
  if (job.shard_servers.front().primary == server) return true;
  for (int layer = 0; layer < std::ssize(job.layers); ++layer) {
    if (!UsesServers(job.routes[layer].scheme)) continue;
    for (const Chunk& chunk : job.placement.layer_chunks(layer)) {
      if (job.ServerOf(chunk) == PeerId::Shard(server)) return true;
    }
  }
  return false;
}

}  // namespace

Votes::Votes(JobPtr job, int server) : server_(server) {
  OnEpoch(std::move(job));
}

void Votes::OnEpoch(JobPtr job) {
  job_ = std::move(job);
  counts_ = NeedsVerdicts(*job_, server_);
  frozen_ = false;
  verdicts_.Add(job_->history.verdicts);
  open_.clear();
}

int64_t Votes::decided_step() const {
  return verdicts_.all().empty()
             ? job_->history.base_round
             : std::max(job_->history.base_round, verdicts_.all().back().step);
}

absl::StatusOr<Landing> Votes::OnHeader(PeerId from,
                                        const FrameHeader& header) const {
  const int position =
      from.role == Role::kWorker ? job_->PositionOf(from.rank) : -1;
  // A worker may have heard the next verdict before this server reaches it, so
  // a vote may be for one of the two steps after decided_step().
  if (!job_->votes() || position < 0 || header.layer != 0 ||
      header.chunk != 0 || header.offset != 0 || header.payload_bytes != 0 ||
      header.part > kSkipped || header.round < 0 ||
      (counts_ && header.round > decided_step() + 2) ||
      position >= job_->ContributorsOf(header.round)) {
    return RefuseFrame(
        header, "a vote must come from a contributor to its step, and step ",
        decided_step(), " is the last step with a verdict");
  }
  const bool is_past = header.round <= decided_step();
  if (!counts_ || frozen_ || is_past) return Landing::Discard();
  const auto count = open_.find(header.round);
  const bool repeated =
      count != open_.end() && count->second.voted.Has(position);
  return repeated ? Landing::Discard() : Landing::Scratch();
}

std::vector<int> Votes::Missing(int64_t step) const {
  std::vector<int> missing;
  if (!job_->votes() || verdicts_.Skipped(step).has_value()) return missing;
  const auto count = open_.find(step);
  for (int position = 0; position < job_->ContributorsOf(step); ++position) {
    if (count != open_.end() && count->second.voted.Has(position)) continue;
    missing.push_back(job_->workers[position].rank);
  }
  return missing;
}

std::optional<StepVerdict> Votes::OnFrame(PeerId from,
                                          const FrameHeader& header) {
  const auto [entry, begins] = open_.try_emplace(header.round);
  Count& count = entry->second;
  if (begins) count.voted = FrameSet(job_->ContributorsOf(header.round));
  count.skipped |= header.part == kSkipped;
  if (!count.voted.Mark(job_->PositionOf(from.rank))) return std::nullopt;
  const StepVerdict verdict{header.round, count.skipped};
  open_.erase(entry);
  verdicts_.Add({&verdict, 1});
  return verdict;
}

}  // namespace nereus
