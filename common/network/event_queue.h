#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "absl/time/time.h"

namespace nereus {

// Virtual time: a clock that jumps from event to event. Events at the same time
// run in the order in which they were scheduled. So equal calls give equal
// runs. Only one thread may use a queue. Its memory grows with the number of
// events that are scheduled and have not run.
class EventQueue {
 public:
  using Event = std::function<void()>;

  // Current virtual time: the Unix epoch at first, then the time of the event
  // that ran last.
  absl::Time now() const { return now_; }

  // Schedules `event` at now() + `delay`, `delay` >= 0.
  void After(absl::Duration delay, Event event);
  // Schedules `event` at `time`, or now if `time` has passed.
  void At(absl::Time time, Event event);

  // Runs the next event. Returns false if there is none.
  bool RunNext();

  // Number of events run so far.
  int64_t events_run() const { return events_run_; }

 private:
  // A scheduled event.
  struct Entry {
    absl::Time time;   // Time at which it runs.
    int64_t sequence;  // Number of events scheduled before it.
    Event event;       // Function to call once at that time.
    // True if this entry runs after `other`.
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  // Current virtual time.
  absl::Time now_ = absl::UnixEpoch();
  int64_t next_sequence_ = 0;  // Sequence of the next event.
  int64_t events_run_ = 0;     // Number of events run.
  // Events to come, the earliest on top.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
};

}  // namespace nereus
