#pragma once

#include <cstdint>
#include <vector>

#include "common/base/huge_pages.h"
#include "common/protocol/frame.h"

namespace nereus {

// Millions of frames in many short lists, one after the other in memory: a
// frame is a number, and each has the number of the next one in its list.
// References stay valid until a frame is freed; its memory serves the next one.
class FramePool {
 public:
  using Index = uint32_t;
  static constexpr Index kNone = UINT32_MAX;

  // A copy of `frame`, with no next one.
  Index Add(const Frame& frame) {
    const Index index = free_ != kNone ? free_ : MakeSlot();
    Slot& slot = At(index);
    free_ = slot.next;
    slot.frame = frame;
    slot.next = kNone;
    return index;
  }

  // Its payload is released at once.
  void Free(Index index) {
    Slot& slot = At(index);
    slot.frame.payload = Buffer();
    slot.next = free_;
    free_ = index;
  }

  const Frame& frame(Index index) const { return At(index).frame; }
  Frame& frame(Index index) { return At(index).frame; }
  Index& next(Index index) { return At(index).next; }

 private:
  struct Slot {
    Frame frame;
    Index next = kNone;
  };
  using Block = std::vector<Slot, HugePageAllocator<Slot>>;
  static constexpr Index kSlotsPerBlock = 1 << 16;

  Slot& At(Index index) {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }
  const Slot& At(Index index) const {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }

  Index MakeSlot() {
    if (blocks_.empty() || blocks_.back().size() == kSlotsPerBlock) {
      blocks_.emplace_back().reserve(kSlotsPerBlock);
    }
    blocks_.back().emplace_back();
    return static_cast<Index>((blocks_.size() - 1) * kSlotsPerBlock +
                              blocks_.back().size() - 1);
  }

  std::vector<Block> blocks_;  // None grows beyond what it has reserved.
  Index free_ = kNone;
};

}  // namespace nereus
