#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <tuple>
#include <utility>
#include <vector>

namespace nereus {

// Frames that wait for one peer: the lowest Frame::priority goes first,
// whatever came before it, and frames of one priority keep their order. So a
// small layer that is urgent waits for one frame of a large one, and not for
// all of it. `T`: how a frame is held.
template <typename T>
class SendQueue {
 public:
  void Push(uint32_t priority, T frame) {
    entries_.push_back({priority, next_++, std::move(frame)});
    std::push_heap(entries_.begin(), entries_.end(), GoesAfter);
  }

  // REQUIRES: !empty().
  T Pop() {
    std::pop_heap(entries_.begin(), entries_.end(), GoesAfter);
    T frame = std::move(entries_.back().frame);
    entries_.pop_back();
    return frame;
  }

  // The next one. REQUIRES: !empty().
  const T& front() const { return entries_.front().frame; }

  bool empty() const { return entries_.empty(); }

  // Takes all out, in order.
  std::deque<T> TakeAll() {
    std::deque<T> all;
    while (!empty()) all.push_back(Pop());
    return all;
  }

 private:
  struct Entry {
    uint32_t priority = 0;
    uint64_t number = 0;  // In the order of Push.
    T frame;
  };

  static bool GoesAfter(const Entry& entry, const Entry& other) {
    return std::tie(entry.priority, entry.number) >
           std::tie(other.priority, other.number);
  }

  // A heap: it keeps its memory, so that no frame costs an allocation.
  std::vector<Entry> entries_;
  uint64_t next_ = 0;
};

}  // namespace nereus
