#ifndef NEREUS_COMMON_PROTOCOL_SEND_QUEUE_H_
#define NEREUS_COMMON_PROTOCOL_SEND_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "common/protocol/frame.h"

namespace nereus {

// What goes first of what waits for one peer: the frames of layers that the
// next forward needs first, whatever came before them. So a small layer waits
// for one frame of a large one, and not for all of it. Frames of one layer keep
// their order.
inline uint32_t SendRank(const FrameHeader& header) { return header.layer; }

// Frames that wait, in that order. `T`: how a frame is held.
template <typename T>
class SendQueue {
 public:
  void Push(const FrameHeader& header, T frame) {
    by_rank_[SendRank(header)].push_back(std::move(frame));
  }

  // REQUIRES: !empty().
  T Pop() {
    const auto first = by_rank_.begin();
    T frame = std::move(first->second.front());
    first->second.pop_front();
    if (first->second.empty()) by_rank_.erase(first);
    return frame;
  }

  bool empty() const { return by_rank_.empty(); }

  // Takes all out, in order.
  std::deque<T> TakeAll() {
    std::deque<T> all;
    while (!empty()) all.push_back(Pop());
    return all;
  }

 private:
  std::map<uint32_t, std::deque<T>> by_rank_;  // None is empty.
};

}  // namespace nereus

#endif  // NEREUS_COMMON_PROTOCOL_SEND_QUEUE_H_
