#pragma once

#include <utility>

namespace nereus {

// Decides whether a member may say that it lives. Heartbeats are sent beside
// the driver, which does the work, and must not hide that the driver stands
// still: a member that only its session keeps alive would hold up all others
// for ever.
//
// Before each heartbeat the driver is asked for a sign of life. Without one,
// no heartbeat is sent, and the coordinator counts the member as dead when its
// lease is over. Plain bookkeeping: one thread at a time, or a lock.
class Pulse {
 public:
  struct Beat {
    bool is_alive = false;  // A heartbeat may be sent.
    bool is_busy = false;   // It says that nothing else is answered.
    bool asks = false;      // The driver is to call Answer.
  };

  // A heartbeat is due.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || is_busy_, !answered && is_busy_, answered};
  }

  // The driver does its work.
  void Answer() { answered_ = true; }

  // The driver begins, or has ended, work that may take longer than a lease and
  // that surely ends.
  void SetBusy(bool is_busy) { is_busy_ = is_busy; }

 private:
  bool answered_ = true;
  bool is_busy_ = false;
};

}  // namespace nereus
