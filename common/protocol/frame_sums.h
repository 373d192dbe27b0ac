#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/protocol/outbox.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Order in which the contributions to a frame are added.
enum class SumOrder {
  kArrival,  // Order of arrival: two runs may differ in the last bits.
  kRank,     // Order of contributors: equal bits; early values are held.
};

// Sums of the frames of one round, frame by frame: each contributor adds its
// values of a frame once, and the frame's sum is complete with the last one.
//
// Frames and contributors are numbers; a caller knows which part of a chunk or
// of a layer a frame is, and has the memory of its sum. A caller must ask Has
// before it adds: values that counted twice would be a wrong mean that no later
// check finds, so Add dies instead.
//
// Plain bookkeeping for one thread: the driver carries out the additions.
// Memory: one bit for each frame and contributor, and, with SumOrder::kRank,
// copies of the values that are held until their turn; in the worst case, the
// values of all contributors but the first.
class FrameSums {
 public:
  // Makes sums without frames: call Reopen before the first Add.
  explicit FrameSums(SumOrder order) : order_(order) {}

  // Forgets all values and starts `frames` new sums. Contributions to each of
  // them are numbered [0, contributors). REQUIRES: contributors >= 1.
  void Reopen(int contributors, int64_t frames);

  // True if this contributor has added its values of `frame`.
  bool Has(int contributor, int64_t frame) const {
    return arrived_[frame * contributors_ + contributor];
  }
  // True if all contributors have added their values of `frame`, and the
  // outboxes so far have all of its additions.
  bool IsComplete(int64_t frame) const {
    return folded_[frame] == contributors_;
  }

  // Adds a contributor's values to the sum of `frame`, or copies them for
  // later, if it is not the contributor's turn. `place`: memory of the sum, the
  // same for all contributors; its old values do not count. The last addition
  // of the frame multiplies the sum by `factor`, which is the same for all
  // contributors. Buffers must live until the actions have been carried out.
  // REQUIRES: not Has.
  void Add(int contributor, int64_t frame, const Buffer& place, Addend addend,
           float factor, Outbox& out);

  // Bytes of the values that are held until their turn.
  int64_t held_bytes() const;

 private:
  // Adds values to the sum, or copies them if they are the first of the frame.
  void Fold(int64_t frame, const Buffer& place, Addend addend, float factor,
            Outbox& out);

  SumOrder order_;
  int contributors_ = 0;  // Number of contributions to each frame.
  std::vector<bool>
      arrived_;              // Indexed by frame * contributors_ + contributor.
  std::vector<int> folded_;  // Number of contributions in the sum, by frame.
  std::map<std::pair<int64_t, int>, Buffer>
      held_;  // Values of early contributors, by frame and contributor.
};

}  // namespace nereus
