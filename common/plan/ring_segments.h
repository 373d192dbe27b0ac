#pragma once

#include <algorithm>
#include <cstdint>

namespace nereus {

// Cut of a layer's elements into segments for an all-reduce on a ring: one
// contiguous segment for each contributor. All have the same length, rounded up
// to a cache line, except at the end, where a segment may be shorter or empty.
// All workers must derive the same cut: frames name a segment by its index
// only. A value type.
class RingSegments {
 public:
  // REQUIRES: elements >= 1, contributors >= 1.
  RingSegments(int64_t elements, int64_t contributors)
      : elements_(elements),
        length_(RoundUp((elements + contributors - 1) / contributors)) {}

  // Returns the first element of segment `index`, and below its length.
  int64_t Offset(int64_t index) const {
    return std::min(elements_, index * length_);
  }
  // Returns the number of elements of segment `index`.
  int64_t Length(int64_t index) const {
    return Offset(index + 1) - Offset(index);
  }

  // Number of segments of full length. At most one more is not empty.
  int64_t full_count() const { return elements_ / length_; }
  // Length of a full segment.
  int64_t full_length() const { return length_; }

 private:
  // Float32 values in a cache line of 64 bytes: two segments share none, so two
  // threads never write to the same line.
  static constexpr int64_t kMultiple = 16;
  static int64_t RoundUp(int64_t length) {
    return (length + kMultiple - 1) / kMultiple * kMultiple;
  }

  // Number of elements of the layer.
  int64_t elements_;
  int64_t length_;  // Number of elements of a full segment.
};

}  // namespace nereus
