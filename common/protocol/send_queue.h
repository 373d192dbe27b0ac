#ifndef NEREUS_COMMON_PROTOCOL_SEND_QUEUE_H_
#define NEREUS_COMMON_PROTOCOL_SEND_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

namespace nereus {

// Frames that wait for one peer: the lowest Frame::rank goes first, whatever
// came before it, and frames of one rank keep their order. So a small layer
// that is urgent waits for one frame of a large one, and not for all of it.
// `T`: how a frame is held.
template <typename T>
class SendQueue {
 public:
  void Push(uint32_t rank, T frame) {
    by_rank_[rank].push_back(std::move(frame));
  }

  // REQUIRES: !empty().
  T Pop() {
    const auto first = by_rank_.begin();
    T frame = std::move(first->second.front());
    first->second.pop_front();
    if (first->second.empty()) by_rank_.erase(first);
    return frame;
  }

  // The next one. REQUIRES: !empty().
  const T& front() const { return by_rank_.begin()->second.front(); }

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
