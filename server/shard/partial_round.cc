#include "server/shard/partial_round.h"

#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"

namespace nereus {

void PartialRound::SetWorkers(const std::vector<EpochWorker>& workers) {
  std::map<int, Progress> before = std::exchange(progress_, {});
  const int64_t frames = FrameCount(elements_);
  begun_.resize(frames, false);
  for (const EpochWorker& each : workers) {
    Progress& progress = progress_[each.rank];
    progress = std::move(before[each.rank]);
    // A worker whose first step has changed starts there, even if the new first
    // step is an earlier one.
    if (progress.first_step == each.first_step) continue;
    progress.first_step = each.first_step;
    progress.counted = each.first_step - 1;
    progress.arrived = FrameSet(frames);
  }
}

absl::StatusOr<Landing> PartialRound::OnHeader(const Job& job,
                                               const FrameHeader& header,
                                               int position,
                                               int64_t repeated) const {
  const int rank = job.workers[position].rank;
  const int64_t next = counted(rank) + 1;
  if (header.part != kValuesPart || header.round > next || header.round < 0) {
    return RefuseFrame(header, "step ", next,
                       " of this worker is next, "
                       "and the part must be 0");
  }
  const int64_t frame = NEREUS_TRY(FrameIndex(header, elements_));
  // Lets a repeated contribution through: its answer may have been lost with
  // the epoch before.
  const bool asks_again =
      header.round < next && header.offset == 0 && header.round > repeated;
  if (asks_again) return Landing::Scratch();
  return Has(rank, header.round, frame) ? Landing::Discard()
                                        : Landing::Scratch();
}

// For each contributor, the round waits until a certain step of it is counted.
// This step is the round's own step, if the round waits for all contributors or
// if the contributor is the initiator. Otherwise it is `staleness` steps
// earlier. A round that could close without any contribution to its own step
// waits for all contributors instead.
std::vector<int> PartialRound::Awaited(const Job& job, int64_t round) const {
  const RoundOptions& options = job.options.rounds;
  const int contributors = job.ContributorsOf(round);
  const bool all = options.quorum == Quorum::kEach || job.IsResync(round);
  std::vector<int> awaited;
  bool one_is_here = false;
  for (int position = 0; position < contributors; ++position) {
    const int64_t last = counted(job.workers[position].rank);
    one_is_here = one_is_here || last >= round;
    const bool initiates = options.quorum == Quorum::kMajority &&
                           position == job.InitiatorOf(round);
    const int64_t wanted = all || initiates ? round : round - options.staleness;
    if (last < wanted) awaited.push_back(position);
  }
  if (one_is_here || !awaited.empty()) return awaited;
  awaited.resize(contributors);
  std::iota(awaited.begin(), awaited.end(), 0);
  return awaited;
}

bool PartialRound::Has(int rank, int64_t step, int64_t frame) const {
  const Progress& progress = progress_.at(rank);
  return step <= progress.counted || progress.arrived.Has(frame);
}

// If the last update still reads the old sum, the new sum gets new memory.
bool PartialRound::Add(int rank, int64_t step, int64_t frame, Addend addend,
                       Outbox& out) {
  Progress& progress = progress_.at(rank);
  NEREUS_CHECK(step == progress.counted + 1 && !progress.arrived.Has(frame))
      << "step " << step << " of worker " << rank << ", frame " << frame;
  const bool none_begun =
      absl::c_none_of(begun_, [](bool each) { return each; });
  if (none_begun && !sum_.unique()) {
    sum_ = Buffer::AllocateLike(
        addend.payload, elements_ * static_cast<int64_t>(sizeof(float)));
  }
  out.Add(Accumulate{FrameOf(frame), std::move(addend),
                     /*replaces=*/!begun_[frame]});
  begun_[frame] = true;
  if (!progress.arrived.Mark(frame)) return false;
  whole_ = true;
  ++progress.counted;
  progress.arrived = FrameSet(FrameCount(elements_));
  return true;
}

Buffer PartialRound::FrameOf(int64_t frame) const {
  return sum_.Slice(
      frame * kFramePayloadBytesMax,
      FrameGrid(elements_).Length(frame) * static_cast<int64_t>(sizeof(float)));
}

void PartialRound::Settle(Outbox& out) {
  for (size_t frame = 0; frame < begun_.size(); ++frame) {
    if (begun_[frame]) continue;
    const Buffer part = FrameOf(static_cast<int64_t>(frame));
    out.Add(CopyValues{part, Buffer::AllocateLike(sum_, part.bytes())});
    begun_[frame] = true;
  }
}

}  // namespace nereus
