#pragma once

#include <utility>

namespace nereus {

// Decides whether a member may send a heartbeat. A thread of the session sends
// heartbeats, while the driver does the member's work. Heartbeats must not hide
// a driver that stands still, because all other members would wait for this
// member for ever.
//
// With each heartbeat the driver is asked for a sign of life. If it has not
// answered when the next heartbeat is due, that heartbeat is not sent, unless
// the driver has said that it is busy. Without heartbeats the coordinator
// declares the member dead when its lease is over. Not thread-safe: callers
// hold a lock.
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

  // Called when a heartbeat is due. At most one question is open: a driver that
  // has not answered is not asked again.
  Beat OnDue() {
    const bool answered = std::exchange(answered_, false);
    return {answered || is_busy_, !answered && is_busy_, answered};
  }

  // Called by the driver between two pieces of work: it is alive.
  void Answer() { answered_ = true; }

  // Called by the driver before and after work that may take longer than a
  // lease but surely ends, such as reading a checkpoint. While the driver is
  // busy, the member may send heartbeats without its answer.
  void SetBusy(bool is_busy) { is_busy_ = is_busy; }

 private:
  bool answered_ = true;  // True if the driver has answered the last question.
  bool is_busy_ = false;  // True during long work (SetBusy).
};

}  // namespace nereus
