#pragma once

#include <algorithm>
#include <cstdint>

namespace nereus {

// How a layer's flat elements are cut for an all-reduce on a ring: a contiguous
// segment for each contributor, all of the same length but for what is over at
// the end, so that the last ones may be shorter, or empty.
class RingSegments {
 public:
  // REQUIRES: elements >= 1, contributors >= 1.
  RingSegments(int64_t elements, int64_t contributors)
      : elements_(elements),
        length_(RoundUp((elements + contributors - 1) / contributors)) {}

  // Of segment `index`, from 0: its first element, and how many it has.
  int64_t Offset(int64_t index) const {
    return std::min(elements_, index * length_);
  }
  int64_t Length(int64_t index) const {
    return Offset(index + 1) - Offset(index);
  }

  // Segments that are as long as any; at most one more is not empty.
  int64_t full_count() const { return elements_ / length_; }
  int64_t full_length() const { return length_; }

 private:
  // A segment begins where a cache line does.
  static constexpr int64_t kMultiple = 16;
  static int64_t RoundUp(int64_t length) {
    return (length + kMultiple - 1) / kMultiple * kMultiple;
  }

  int64_t elements_;
  int64_t length_;
};

}  // namespace nereus
