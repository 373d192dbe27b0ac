#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "absl/container/flat_hash_map.h"
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
  // All events to come at one time. Nodes that are alike do the same things at
  // the same times, so a moment often has as many events as there are nodes,
  // and only moments need a heap.
  struct Moment {
    std::vector<Event> events;  // Events in the order of scheduling.
    size_t next = 0;            // Index of the event that runs next.
  };
  using MomentIndex = uint32_t;

  // A moment in the heap.
  struct Entry {
    absl::Time time;
    MomentIndex moment;  // Index in moments_.
    // True if this entry runs after `other`. No two entries have one time.
    bool operator>(const Entry& other) const { return time > other.time; }
  };

  // Returns the moment at `time`, which it makes if there is none.
  Moment& MomentAt(absl::Time time);

  // Current virtual time.
  absl::Time now_ = absl::UnixEpoch();
  int64_t events_run_ = 0;  // Number of events run.
  // Moments with events to come, and unused ones, which keep their memory.
  std::vector<Moment> moments_;
  std::vector<MomentIndex> unused_;  // Moments without a time.
  absl::flat_hash_map<absl::Time, MomentIndex> moment_of_;
  // Moments with events to come, the earliest on top.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
  // Time and moment of the last result of MomentAt; the infinite past: none.
  absl::Time last_time_ = absl::InfinitePast();
  MomentIndex last_ = 0;
};

}  // namespace nereus
