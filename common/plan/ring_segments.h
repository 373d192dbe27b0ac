#pragma once

#include <algorithm>
#include <cstdint>

namespace nereus {

// Cut of a layer's elements into segments for an all-reduce on a ring: one
// contiguous segment for each contributor. The first segments are full: they
// have one length, and their float32 values fill whole cache lines. The next
// segment may be shorter, and all later segments are empty. All workers must
// make the same cut, because a frame names a segment only by its index. A value
// type.
class RingSegments {
 public:
  // REQUIRES: elements >= 1, contributors >= 1.
  RingSegments(int64_t elements, int64_t contributors)
      : elements_(elements),
        length_(RoundUp((elements + contributors - 1) / contributors)) {}

  // Returns the index of the first element of segment `index`.
  int64_t Offset(int64_t index) const {
    return std::min(elements_, index * length_);
  }
  // Returns the number of elements of segment `index`.
  int64_t Length(int64_t index) const {
    return Offset(index + 1) - Offset(index);
  }

  // Number of full segments. At most one more segment is not empty.
  int64_t full_count() const { return elements_ / length_; }
  // Number of elements of a full segment.
  int64_t full_length() const { return length_; }

 private:
  // Number of float32 values in a cache line of 64 bytes. If the layer's memory
  // begins at a cache line, two segments share no line, so two threads that
  // write to different segments do not disturb each other.
  static constexpr int64_t kMultiple = 16;
  static int64_t RoundUp(int64_t length) {
    return (length + kMultiple - 1) / kMultiple * kMultiple;
  }

  // Number of elements of the layer.
  int64_t elements_;
  int64_t length_;  // Number of elements of a full segment.
};

}  // namespace nereus
