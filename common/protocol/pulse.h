#pragma once

#include <optional>
#include <utility>

#include "common/protocol/activity.h"

namespace nereus {

// Decides whether a member may send a heartbeat. A thread of the session sends
// heartbeats, and the driver, on another thread, does the member's work. If the
// driver stands still, heartbeats must stop too. Otherwise all other members
// would wait for this member for ever.
//
// With each heartbeat, the thread of the session asks the driver for a sign of
// life. If the driver has not answered when the next heartbeat is due, the
// thread does not send this heartbeat, unless the driver has said that it does
// long work. A member that sends no heartbeat for the lease counts as dead, and
// so does a member whose long work gets no further. Not thread-safe: callers
// hold a lock.
class Pulse {
 public:
  // Decision about one heartbeat that is due.
  struct Beat {
    bool is_alive = false;  // True if a heartbeat may be sent.
    // Long work that the heartbeat must report; nothing: none is under way.
    std::optional<LongWork> work;
    // True if the caller must ask the driver to call Answer.
    bool asks = false;
  };

  // Decides about a heartbeat that is due. At most one question is open:
  // Beat::asks is false while the driver has not answered the last question.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || work_.has_value(), work_, answered};
  }

  // Answers the open question. The driver calls this between two pieces of
  // work, to show that it is alive.
  void Answer() { answered_ = true; }

  // Notes how far the driver's long work is; nothing: it is done. During long
  // work the member may send heartbeats although the driver has not answered.
  void SetWork(const std::optional<LongWork>& work) { work_ = work; }

 private:
  bool answered_ = true;  // True if the driver has answered the last question.
  std::optional<LongWork> work_;  // See SetWork.
};

}  // namespace nereus
