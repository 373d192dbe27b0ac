#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "absl/time/time.h"

namespace nereus {

// Which thread drives a machine: the owner, a thread for nothing else, or a
// guest, one that has to wait for the machine anyway and does its work itself
// meanwhile. That saves what it costs to hand over to the owner and back, some
// ten microseconds, which is all that a small layer takes.
//
// A guest that comes and goes in quick succession finds the turn where it left
// it: the owner takes it back only when nobody has come for a moment. What is
// to be done meanwhile waits. Thread-safe.
class DrivingTurn {
 public:
  // A guest that was back so soon the last time may be so again...
  static constexpr absl::Duration kSoon = absl::Microseconds(50);
  // ... and so long the owner leaves the turn to it.
  static constexpr absl::Duration kPause = absl::Microseconds(100);

  // `interrupt`: lets an owner that waits for events look whether it is wanted.
  explicit DrivingTurn(std::function<void()> interrupt)
      : interrupt_(std::move(interrupt)) {}

  // The owner waits for its turn; false: Stop was called.
  bool OwnerTakes();
  // A guest waits for it, or the end.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void OwnerGives();

  // Waits until the owner gives it. False: another guest has it, or Stop was
  // called.
  bool GuestTakes();
  void GuestGives();

  // Whether somebody drives. If not, whoever is next finds what was left for it
  // before this call.
  bool taken() const { return taken_.load(); }

  // The owner is to end. Returns when there is no guest any more.
  void Stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // The owner waits until something may have changed.
  void Doze(Lock& lock);

  const std::function<void()> interrupt_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> taken_{false};

  // Not nereus::Mutex, whose every Unlock would wake the owner.
  std::mutex mu_;
  std::condition_variable given_;  // By the owner.
  std::condition_variable back_;   // The owner is to look.
  bool owner_ = false;             // Has the turn.
  bool guest_ = false;             // Has it, or waits for it.
  bool stopped_ = false;
  bool comes_back_ = false;  // A guest has, the last time.
  bool sleeps_ = false;      // The owner does, until it is woken.
  int looks_ = 0;            // Of the owner, in a row, without its turn.
  absl::Time given_at_ = absl::InfinitePast();  // By a guest.
};

}  // namespace nereus
