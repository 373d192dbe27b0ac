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
  MomentAt(std::max(time, now_)).events.push_back(std::move(event));
}

EventQueue::Moment& EventQueue::MomentAt(absl::Time time) {
  if (time == last_time_) return moments_[last_];
  const auto [found, is_new] = moment_of_.try_emplace(time, 0);
  if (is_new) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<MomentIndex>(moments_.size()));
      moments_.emplace_back();
    }
    found->second = unused_.back();
    unused_.pop_back();
    entries_.push({time, found->second});
  }
  last_time_ = time;
  last_ = found->second;
  return moments_[last_];
}

bool EventQueue::RunNext() {
  if (entries_.empty()) return false;
  const Entry entry = entries_.top();
  Moment& moment = moments_[entry.moment];
  const Event event = std::move(moment.events[moment.next++]);
  now_ = entry.time;
  ++events_run_;
  if (moment.next == moment.events.size()) {
    moment.events.clear();
    moment.next = 0;
    entries_.pop();
    moment_of_.erase(entry.time);
    unused_.push_back(entry.moment);
    if (last_time_ == entry.time) last_time_ = absl::InfinitePast();
  }
  // The event may schedule other events: it has left the queue.
  event();
  return true;
}

}  // namespace nereus
