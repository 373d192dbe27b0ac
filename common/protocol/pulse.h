#pragma once

#include <utility>

namespace nereus {

// Decides whether a member may send a heartbeat. A thread of the session sends
// heartbeats, and the driver, on another thread, does the member's work. If the
// driver stands still, heartbeats must stop too. Otherwise all other members
// would wait for this member for ever.
//
// With each heartbeat, the thread of the session asks the driver for a sign of
// life. If the driver has not answered when the next heartbeat is due, the
// thread does not send this heartbeat, unless the driver has said that it is
// busy. A member that sends no heartbeat for the lease counts as dead. Not
// thread-safe: callers hold a lock.
class Pulse {
 public:
  // Decision about one heartbeat that is due.
  struct Beat {
    bool is_alive = false;  // True if a heartbeat may be sent.
    // True if the heartbeat must say that the member is busy.
    bool is_busy = false;
    // True if the caller must ask the driver to call Answer.
    bool asks = false;
  };

  // Decides about a heartbeat that is due. At most one question is open:
  // Beat::asks is false while the driver has not answered the last question.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || is_busy_, !answered && is_busy_, answered};
  }

  // Answers the open question. The driver calls this between two pieces of
  // work, to show that it is alive.
  void Answer() { answered_ = true; }

  // Notes that the driver is busy or no longer busy. The driver calls this
  // before and after work that may take longer than the lease but surely ends,
  // such as reading a checkpoint. While the driver is busy, the member may send
  // heartbeats although the driver has not answered.
  void SetBusy(bool is_busy) { is_busy_ = is_busy; }

 private:
  bool answered_ = true;  // True if the driver has answered the last question.
  bool is_busy_ = false;  // True during long work (SetBusy).
};

}  // namespace nereus
