#pragma once

#include <cstdint>
#include <vector>

#include "common/base/huge_pages.h"
#include "common/protocol/frame.h"

namespace nereus {

// Memory for millions of frames in many short lists. An index names a frame,
// and each frame has the index of the next frame in its list. A std::list for
// each pair of processes would allocate memory for every frame; here a new
// frame reuses the memory of a freed one. A reference to a frame stays valid
// until the frame is freed. Only one thread may use a pool. The pool has memory
// for the largest number of frames that it ever had at one time, and never
// shrinks.
class FramePool {
 public:
  // Name of a frame.
  using Index = uint32_t;
  // Index that names no frame.
  static constexpr Index kNone = UINT32_MAX;

  // Adds a copy of `frame`, without a next frame.
  Index Add(const Frame& frame) {
    const Index index = free_ != kNone ? free_ : MakeSlot();
    Slot& slot = At(index);
    free_ = slot.next;
    slot.frame = frame;
    slot.next = kNone;
    return index;
  }

  // Frees a frame, and releases its payload at once.
  void Free(Index index) {
    Slot& slot = At(index);
    slot.frame.payload = Buffer();
    slot.next = free_;
    free_ = index;
  }

  // Frame `index`. REQUIRES: not freed.
  const Frame& frame(Index index) const { return At(index).frame; }
  Frame& frame(Index index) { return At(index).frame; }
  // Index of the frame behind frame `index` in its list; kNone if there is
  // none. The caller may set it.
  Index& next(Index index) { return At(index).next; }

 private:
  // Memory of one frame.
  struct Slot {
    Frame frame;         // The frame.
    Index next = kNone;  // Next frame of the list, or next free slot.
  };
  // Slots that are allocated together. They never move, so references to frames
  // stay valid.
  using Block = std::vector<Slot, HugePageAllocator<Slot>>;
  // Number of slots of a block.
  static constexpr Index kSlotsPerBlock = 1 << 16;

  // Slot of an index.
  Slot& At(Index index) {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }
  const Slot& At(Index index) const {
    return blocks_[index / kSlotsPerBlock][index % kSlotsPerBlock];
  }

  // Makes a slot, in a new block if the last block is full.
  Index MakeSlot() {
    if (blocks_.empty() || blocks_.back().size() == kSlotsPerBlock) {
      blocks_.emplace_back().reserve(kSlotsPerBlock);
    }
    blocks_.back().emplace_back();
    return static_cast<Index>((blocks_.size() - 1) * kSlotsPerBlock +
                              blocks_.back().size() - 1);
  }

  std::vector<Block> blocks_;  // Each has at most kSlotsPerBlock slots.
  Index free_ = kNone;         // First free slot.
};

}  // namespace nereus
