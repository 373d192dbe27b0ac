// How a shard closes rounds without everybody.

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/shard/shard.h"

namespace nereus {

bool Shard::MayHave(const Slot& slot, const EarlyPull& pull) const {
  const bool closed =
      slot.round > kInitialRound && pull.round - steps_ahead() < slot.round;
  if (!closed || !job_->partial()) return closed;
  // Its own has to be counted before: it sends no more of a step that is done.
  const int position = job_->PositionOf(pull.rank);
  return pull.round < job_->workers[position].first_step ||
         CountedOf(slot, position) >= pull.round;
}

absl::StatusOr<Landing> Shard::OnPartialHeader(const Slot& slot,
                                               const FrameHeader& header,
                                               int position) const {
  const int64_t next = CountedOf(slot, position) + 1;
  if (header.part != kValuesPart || header.round > next || header.round < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": step ", next,
                     " of this worker is next, and the part must be 0"));
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, slot.chunk.length));
  const int rank = job_->workers[position].rank;
  // Its answer may have been lost with the last epoch.
  const bool asks_again = header.round < next && header.offset == 0 &&
                          header.round > slot.repeated[position] &&
                          !job_->decoupled();
  if (asks_again) return Landing::Scratch();
  return slot.partial.Has(rank, header.round, frame) ? Landing::Discard()
                                                     : Landing::Scratch();
}

void Shard::OnPartialFrame(Slot& slot, const Frame& frame, int position,
                           Outbox& out) {
  const int rank = job_->workers[position].rank;
  const int64_t step = frame.header.round;
  if (step > CountedOf(slot, position)) {
    const bool whole =
        slot.partial.Add(rank, step, frame.header.offset / kFrameElementsMax,
                         frame.payload, out);
    if (!whole) return;
    AdvancePartial(slot, out);
  }
  if (job_->decoupled()) return;  // Workers ask.
  slot.repeated[position] = step;
  Pull(slot, {rank, step}, out);
}

std::vector<int> Shard::AwaitedFor(const Slot& slot) const {
  const JobOptions& options = job_->options;
  const int64_t round = slot.round;
  const int contributors = job_->ContributorsOf(round);
  const bool all = options.quorum == Quorum::kEach || job_->IsResync(round);
  std::vector<int> awaited;
  bool one_is_here = false;
  for (int position = 0; position < contributors; ++position) {
    const int64_t counted = CountedOf(slot, position);
    one_is_here = one_is_here || counted >= round;
    const bool initiates = options.quorum == Quorum::kMajority &&
                           position == job_->InitiatorOf(round);
    const int64_t wanted = all || initiates ? round : round - options.staleness;
    if (counted < wanted) awaited.push_back(position);
  }
  if (one_is_here || !awaited.empty()) return awaited;
  for (int position = 0; position < contributors; ++position) {
    awaited.push_back(position);
  }
  return awaited;
}

void Shard::AdvancePartial(Slot& slot, Outbox& out) {
  if (slot.round == kInitialRound || frozen_) return;
  const bool each = job_->options.quorum == Quorum::kEach;
  const auto update = [&] {
    slot.partial.Settle(out);
    Update(slot, slot.updates++, slot.partial.sum(),
           each ? 1.0f / static_cast<float>(job_->worker_count())
                : job_->MeanScale(slot.round),
           out);
    slot.partial.Clear();
  };
  const auto advance = [&] {
    Collect(slot, slot.round, out);
    ++slot.round;
  };
  if (each && slot.partial.whole()) update();
  // Those who have taken part in these rounds are all gone.
  while (slot.round < job_->workers.front().first_step) advance();
  while (AwaitedFor(slot).empty()) {
    if (!each) update();
    advance();
  }
  ServeEarlyPulls(slot, out);
}

}  // namespace nereus
