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

// Sums of one round, one for each frame. Each contributor adds its values of a
// frame once. With the last contributor the frame's sum is complete.
//
// Frames and contributors are numbers. The caller knows which part of a chunk
// or layer each frame is, and owns the memory of the sums. The caller must ask
// Has before Add: Add ends the process if the values are a repetition, because
// values that count twice would give a wrong mean that no later check finds.
//
// Plain bookkeeping, not thread-safe: the driver carries out the additions.
// Memory: one bit for each frame and contributor. With SumOrder::kRank, values
// that come before their turn are copied and held: in the worst case, those of
// all contributors but the first.
class FrameSums {
 public:
  // Makes sums without frames: call Reopen before the first Add.
  explicit FrameSums(SumOrder order) : order_(order) {}

  // Forgets all values and starts `frames` new sums. Contributors have the
  // numbers [0, contributors). REQUIRES: contributors >= 1.
  void Reopen(int contributors, int64_t frames);

  // True if this contributor has added its values of `frame`.
  bool Has(int contributor, int64_t frame) const {
    return arrived_[frame * contributors_ + contributor];
  }
  // True if all contributors have added their values of `frame`. All additions
  // are then in the outboxes that Add was given.
  bool IsComplete(int64_t frame) const {
    return folded_[frame] == contributors_;
  }

  // Adds a contributor's values to the sum of `frame`, or copies them for later
  // if it is not the contributor's turn. `place` is the memory of the sum; its
  // old values are overwritten. The last addition multiplies the sum by
  // `factor`. Pass the same `place` and `factor` for all contributors to a
  // frame; a frame may have no values. Buffers must live until the actions have
  // been carried out. REQUIRES: not Has.
  void Add(int contributor, int64_t frame, const Buffer& place, Addend addend,
           float factor, Outbox& out);

  // Bytes of the values that are held until their turn.
  int64_t held_bytes() const;

 private:
  // Adds values to the sum; the first values of a frame overwrite it.
  void Fold(int64_t frame, const Buffer& place, Addend addend, float factor,
            Outbox& out);

  SumOrder order_;
  int contributors_ = 0;  // Number of contributions to each frame.
  // True if the values are here: [frame * contributors_ + contributor].
  std::vector<bool> arrived_;
  std::vector<int> folded_;  // Number of contributions in the sum, by frame.
  // Values of early contributors, by frame and contributor.
  std::map<std::pair<int64_t, int>, Buffer> held_;
};

}  // namespace nereus
