#include "common/protocol/frame_sums.h"

#include <utility>

#include "common/base/logging.h"

namespace nereus {

// `assign` keeps the memory of the vectors: Reopen runs in every round.
void FrameSums::Reopen(int contributors, int64_t frames) {
  NEREUS_CHECK(contributors >= 1 && frames >= 0)
      << contributors << " contributors, " << frames << " frames";
  contributors_ = contributors;
  arrived_.assign(frames * contributors_, false);
  folded_.assign(frames, 0);
  held_.clear();
}

// Marks the contributor as arrived. Then adds its values, or copies them if it
// is not the contributor's turn.
void FrameSums::Add(int contributor, int64_t frame, const Buffer& place,
                    Addend addend, float factor, Outbox& out) {
  NEREUS_CHECK(!Has(contributor, frame))
      << "contributor " << contributor << " frame " << frame;
  arrived_[frame * contributors_ + contributor] = true;
  if (place.bytes() == 0) {  // There is nothing to add.
    ++folded_[frame];
    return;
  }
  if (order_ == SumOrder::kRank && contributor != folded_[frame]) {
    // In a simulation that models only sizes, buffers have no values to copy.
    Buffer copy = addend.payload.data() == nullptr
                      ? Buffer::SizeOnly(place.bytes())
                      : Buffer::Allocate(place.bytes());
    out.Add(Accumulate{copy, std::move(addend), /*replaces=*/true});
    held_.emplace(std::make_pair(frame, contributor), std::move(copy));
    return;
  }
  Fold(frame, place, std::move(addend), factor, out);
  // If the next contributors' values were copied, it is their turn now.
  for (auto next = held_.find({frame, folded_[frame]}); next != held_.end();
       next = held_.find({frame, folded_[frame]})) {
    Fold(frame, place, Addend(next->second), factor, out);
    held_.erase(next);
  }
}

void FrameSums::Fold(int64_t frame, const Buffer& place, Addend addend,
                     float factor, Outbox& out) {
  const bool is_first = folded_[frame] == 0;
  ++folded_[frame];
  out.Add(Accumulate{place, std::move(addend), /*replaces=*/is_first,
                     IsComplete(frame) ? factor : 1.0f});
}

int64_t FrameSums::held_bytes() const {
  int64_t bytes = 0;
  for (const auto& held : held_) bytes += held.second.bytes();
  return bytes;
}

}  // namespace nereus
