#include "server/aggregation_round.h"

#include <utility>

#include "common/base/logging.h"
#include "common/protocol/frame.h"

namespace nereus {
namespace {

// In simulations that model sizes only, there are no values to add.
Buffer AllocateLike(const Buffer& payload, int64_t bytes) {
  return payload.data() == nullptr ? Buffer::SizeOnly(bytes)
                                   : Buffer::Allocate(bytes);
}

}  // namespace

AggregationRound::AggregationRound(int contributors, int64_t elements,
                                   SumOrder order)
    : elements_(elements), order_(order) {
  Reopen(contributors);
}

void AggregationRound::Reopen(int contributors) {
  NEREUS_CHECK(contributors >= 1 && elements_ >= 1)
      << contributors << " contributors, " << elements_ << " elements";
  contributors_ = contributors;
  held_.clear();
  const int64_t frames = FrameCount(elements_);
  arrived_.assign(frames * contributors_, false);
  folded_.assign(frames, 0);
  missing_ = frames * contributors_;
  started_ = false;
}

int64_t AggregationRound::held_bytes() const {
  int64_t bytes = sum_.bytes();
  for (const auto& held : held_) bytes += held.second.bytes();
  return bytes;
}

Buffer AggregationRound::ExchangeSum(Buffer memory) {
  return std::exchange(sum_, std::move(memory));
}

bool AggregationRound::Has(int contributor, int64_t frame) const {
  return arrived_[frame * contributors_ + contributor];
}

void AggregationRound::Add(int contributor, int64_t frame,
                           const Buffer& payload, Outbox& out) {
  NEREUS_CHECK(!Has(contributor, frame))
      << "contributor " << contributor << " frame " << frame;
  arrived_[frame * contributors_ + contributor] = true;
  --missing_;
  if (!started_ && !sum_.unique()) {
    sum_ =
        AllocateLike(payload, elements_ * static_cast<int64_t>(sizeof(float)));
  }
  started_ = true;
  if (order_ == SumOrder::kArrival || contributor == folded_[frame]) {
    Fold(frame, payload, out);
  } else {
    Buffer copy = AllocateLike(payload, payload.bytes());
    out.Add(CopyValues{copy, payload});
    held_.emplace(std::make_pair(frame, contributor), std::move(copy));
  }
  // Those whose turn has come.
  for (auto next = held_.find({frame, folded_[frame]}); next != held_.end();
       next = held_.find({frame, folded_[frame]})) {
    Fold(frame, next->second, out);
    held_.erase(next);
  }
}

void AggregationRound::Fold(int64_t frame, const Buffer& payload, Outbox& out) {
  const int64_t offset = frame * kFramePayloadBytesMax;
  Buffer part = sum_.Slice(offset, payload.bytes());
  if (folded_[frame] == 0) {
    out.Add(CopyValues{std::move(part), payload});
  } else {
    out.Add(AddValues{std::move(part), payload});
  }
  ++folded_[frame];
}

std::vector<int> AggregationRound::MissingContributors() const {
  std::vector<int> missing;
  for (int contributor = 0; contributor < contributors_; ++contributor) {
    for (int64_t frame = 0; frame < FrameCount(elements_); ++frame) {
      if (Has(contributor, frame)) continue;
      missing.push_back(contributor);
      break;
    }
  }
  return missing;
}

}  // namespace nereus
