#pragma once

#include <utility>

namespace nereus {

// Decides whether a member may send a heartbeat. Heartbeats are sent by a
// thread of the session, beside the driver that does the member's work. They
// must not hide a driver that stands still: all other members would then wait
// for this one for ever.
//
// Before each heartbeat the driver is asked for a sign of life. Without an
// answer no heartbeat is sent, and the coordinator declares the member dead
// when its lease is over. Not thread-safe: one thread, or the owner's lock.
class Pulse {
 public:
  // Decision about one heartbeat that is due.
  struct Beat {
    bool is_alive = false;  // True if a heartbeat may be sent.
    // True if the heartbeat must say that the member is busy.
    bool is_busy = false;
    bool asks = false;  // True if the owner must ask the driver to call Answer.
  };

  // Called when a heartbeat is due. At most one question is open: a driver that
  // has not answered is not asked again.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || is_busy_, !answered && is_busy_, answered};
  }

  // Called by the driver between two pieces of work: it is alive.
  void Answer() { answered_ = true; }

  // Called by the driver before and after work that may take longer than a
  // lease and that surely ends, such as reading a checkpoint. While busy, the
  // member counts as alive without an answer.
  void SetBusy(bool is_busy) { is_busy_ = is_busy; }

 private:
  bool answered_ = true;  // True if the driver has answered the last question.
  bool is_busy_ = false;  // True during long work (SetBusy).
};

}  // namespace nereus
