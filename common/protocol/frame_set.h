#pragma once

#include <cstdint>
#include <vector>

#include "common/base/logging.h"

namespace nereus {

// Numbered frames, or votes, of which each is in place or missing. A value.
class FrameSet {
 public:
  // `count` frames, all of them missing.
  explicit FrameSet(int64_t count = 0) : has_(count), missing_(count) {}

  int64_t count() const { return std::ssize(has_); }
  // Number of missing frames.
  int64_t missing() const { return missing_; }
  // True if `frame` is in place. REQUIRES: it is below count().
  bool Has(int64_t frame) const { return has_[frame]; }
  // True if a frame of [first, first + count) is missing.
  bool Lacks(int64_t first, int64_t count) const {
    for (int64_t frame = first; frame < first + count; ++frame) {
      if (!has_[frame]) return true;
    }
    return false;
  }

  // Notes that `frame`, which was missing, is in place, or will not come.
  // Returns true if no frame is missing any more.
  bool Mark(int64_t frame) {
    NEREUS_CHECK(!has_[frame]) << "frame " << frame << " comes twice";
    has_[frame] = true;
    return --missing_ == 0;
  }
  // Appends `count` missing frames.
  void Extend(int64_t count) {
    has_.resize(has_.size() + count);
    missing_ += count;
  }

 private:
  std::vector<bool> has_;
  int64_t missing_;  // Count of false in has_.
};

}  // namespace nereus
