#include "common/network/event_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"

namespace nereus {

void EventQueue::After(absl::Duration delay, Event event) {
  NEREUS_CHECK(delay >= absl::ZeroDuration()) << absl::FormatDuration(delay);
  At(now_ + delay, std::move(event));
}

void EventQueue::At(absl::Time time, Event event) {
  entries_.push(
      Entry{std::max(time, now_), next_sequence_++, std::move(event)});
}

bool EventQueue::RunNext() {
  if (entries_.empty()) return false;
  // Moves the entry out, although top() is const. top() is const because a
  // changed entry would break the heap's order; this entry is removed at once.
  Entry entry = std::move(const_cast<Entry&>(entries_.top()));
  entries_.pop();
  now_ = entry.time;
  ++events_run_;
  // The event may schedule other events: its entry has left the queue.
  entry.event();
  return true;
}

}  // namespace nereus
