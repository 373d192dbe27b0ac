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
  kArrival,  // Order of arrival: sums of two runs may differ in the last bits.
  kRank,     // Order of contributors: sums of two runs have equal bits.
};

// Sums of one round, one sum for each frame. Each contributor adds its values
// of a frame once. When the last contributor has added its values, the frame's
// sum is complete.
//
// Frames and contributors are numbers here. The caller knows which part of a
// chunk or layer each frame is, and owns the memory of the sums. The caller
// must call Has before Add: if Has is true, Add ends the process, because
// values that count twice would give a wrong mean that no later check finds.
//
// Plain bookkeeping: Add appends actions, and the driver makes the additions.
// Not thread-safe. Memory: one bit for each frame and contributor. With
// SumOrder::kRank, values that come before their turn are copied, unless they
// stay (Addend::stays): in the worst case, the values of all contributors but
// the first.
class FrameSums {
 public:
  // Makes an object that has no sum yet: the caller must call Reopen before the
  // first Add.
  explicit FrameSums(SumOrder order) : order_(order) {}

  // Forgets all sums and starts new ones for frames [0, frames). Contributors
  // have the numbers [0, contributors). REQUIRES: contributors >= 1.
  void Reopen(int contributors, int64_t frames);

  // True if this contributor has added its values of `frame`.
  bool Has(int contributor, int64_t frame) const {
    return arrived_[frame * contributors_ + contributor];
  }
  // True if all contributors have added their values of `frame`. Then Add has
  // appended all actions of this sum to outboxes.
  bool IsComplete(int64_t frame) const {
    return folded_[frame] == contributors_;
  }

  // Adds a contributor's values to the sum of `frame`. If it is not the
  // contributor's turn, copies the values and adds them when their turn comes.
  // `place` is the memory of the sum; the first addition overwrites its old
  // values, and the last one multiplies the sum by `factor`. All contributors
  // to a frame need the same `place` and `factor`. For a frame without values,
  // `place` and the payload of `addend` are empty. Buffers must live until the
  // driver has carried out the actions. REQUIRES: Has is false.
  void Add(int contributor, int64_t frame, const Buffer& place, Addend addend,
           float factor, Outbox& out);

  // Forgets values that stay and were not added yet, so that no sum refers to
  // their memory any more. The sums that lack them never become complete.
  void DropStaying();

  // Number of bytes of copies of values that wait for their turn.
  int64_t held_bytes() const;

 private:
  // Appends the addition of `addend` to the sum of `frame`. If it is the first
  // addition, it overwrites `place`. The first addition of values that stay
  // waits for the second one, and then both are one pass over the memory.
  void Fold(int64_t frame, const Buffer& place, Addend addend, float factor,
            Outbox& out);

  SumOrder order_;        // Order of the additions.
  int contributors_ = 0;  // Number of contributors to each frame.
  // True if Add was called: entry [frame * contributors_ + contributor].
  std::vector<bool> arrived_;
  std::vector<int> folded_;  // Number of contributions in the sum, by frame.
  // Values that wait for their turn, by frame and contributor: copies, or
  // values that stay.
  std::map<std::pair<int64_t, int>, Addend> held_;
  // First values of sums that are not in the memory of the sum yet, by frame.
  std::map<int64_t, Addend> first_;
};

}  // namespace nereus
