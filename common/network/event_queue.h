#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "absl/time/time.h"

namespace nereus {

// Virtual time: a clock that jumps from event to event. Events at one time run
// in the order in which they were scheduled, so a run depends on nothing else.
// For one thread.
class EventQueue {
 public:
  using Event = std::function<void()>;

  absl::Time now() const { return now_; }

  // Runs `event` at now() + `delay`, `delay` >= 0.
  void After(absl::Duration delay, Event event);
  // Runs `event` at `time`, or now if that has passed.
  void At(absl::Time time, Event event);

  // Runs the next event; false if there is none.
  bool RunNext();

  int64_t events_run() const { return events_run_; }

 private:
  struct Entry {
    absl::Time time;
    int64_t sequence;
    Event event;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  absl::Time now_ = absl::UnixEpoch();
  int64_t next_sequence_ = 0;
  int64_t events_run_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
};

}  // namespace nereus
