#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <tuple>
#include <utility>
#include <vector>

namespace nereus {

// Queue of frames that wait to be sent to one peer. The frame with the lowest
// Frame::priority goes first; frames of equal priority keep their order. So an
// urgent small layer waits for one frame of a large layer at most, and not for
// the whole layer.
//
// `T` is the type that holds a frame. Not thread-safe. The queue has no limit:
// machines put few frames into it, because each round has a fixed number of
// frames and a worker has few rounds open.
template <typename T>
class SendQueue {
 public:
  // Adds a frame, behind all frames of the same priority.
  void Push(uint32_t priority, T frame) {
    entries_.push_back({priority, next_++, std::move(frame)});
    std::push_heap(entries_.begin(), entries_.end(), GoesAfter);
  }

  // Removes and returns the next frame. REQUIRES: !empty().
  T Pop() {
    std::pop_heap(entries_.begin(), entries_.end(), GoesAfter);
    T frame = std::move(entries_.back().frame);
    entries_.pop_back();
    return frame;
  }

  // Returns the next frame. REQUIRES: !empty().
  const T& front() const { return entries_.front().frame; }

  // True if no frame waits.
  bool empty() const { return entries_.empty(); }

  // Removes all frames and returns them in the order of sending.
  std::deque<T> TakeAll() {
    std::deque<T> all;
    while (!empty()) all.push_back(Pop());
    return all;
  }

 private:
  // A frame that waits.
  struct Entry {
    uint32_t priority = 0;  // Lower values go first.
    // Number of earlier calls of Push. Orders entries of equal priority.
    uint64_t number = 0;
    T frame;  // The frame.
  };

  // True if `entry` must be sent after `other`. The heap functions use this as
  // "less than" and put the greatest entry first: the one to send next.
  static bool GoesAfter(const Entry& entry, const Entry& other) {
    return std::tie(entry.priority, entry.number) >
           std::tie(other.priority, other.number);
  }

  // Binary heap of the frames that wait. The vector keeps its memory, so in the
  // long run Push does not allocate.
  std::vector<Entry> entries_;
  uint64_t next_ = 0;  // Number for the next Push.
};

}  // namespace nereus
