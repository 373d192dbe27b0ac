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
  first_.clear();
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
  const bool waits = order_ == SumOrder::kRank && contributor != folded_[frame];
  if (waits && addend.stays) {
    held_.emplace(std::pair(frame, contributor), std::move(addend));
    return;
  }
  if (waits) {
    // In a simulation that models only sizes, buffers have no values to copy.
    Buffer copy = addend.payload.data() == nullptr
                      ? Buffer::SizeOnly(place.bytes())
                      : Buffer::Allocate(place.bytes());
    out.Add(Accumulate{copy, std::move(addend), /*replaces=*/true});
    held_.emplace(std::pair(frame, contributor), Addend(std::move(copy)));
    return;
  }
  Fold(frame, place, std::move(addend), factor, out);
  // If the next contributors' values were copied, it is their turn now.
  for (auto next = held_.find({frame, folded_[frame]}); next != held_.end();
       next = held_.find({frame, folded_[frame]})) {
    Fold(frame, place, std::move(next->second), factor, out);
    held_.erase(next);
  }
}

void FrameSums::Fold(int64_t frame, const Buffer& place, Addend addend,
                     float factor, Outbox& out) {
  const bool is_first = folded_[frame] == 0;
  ++folded_[frame];
  if (is_first && addend.stays && !IsComplete(frame)) {
    first_.emplace(frame, std::move(addend));
    return;
  }
  Accumulate add{place, std::move(addend), /*replaces=*/is_first,
                 IsComplete(frame) ? factor : 1.0f};
  if (const auto first = first_.find(frame); first != first_.end()) {
    add.base = std::move(first->second.payload);
    // The check brings the values into the cache for the addition.
    if (first->second.check.has_value()) {
      out.Add(CheckValues{add.base, *first->second.check});
    }
    first_.erase(first);
  }
  out.Add(std::move(add));
}

void FrameSums::DropStaying() {
  first_.clear();
  std::erase_if(held_, [](const auto& each) { return each.second.stays; });
}

int64_t FrameSums::held_bytes() const {
  int64_t bytes = 0;
  for (const auto& [at, addend] : held_) {
    if (!addend.stays) bytes += addend.payload.bytes();
  }
  return bytes;
}

}  // namespace nereus
