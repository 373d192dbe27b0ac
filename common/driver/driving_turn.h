#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "absl/time/time.h"

namespace nereus {

// Decides which of two threads drives a machine. The owner is a thread that
// does nothing else. A guest is a caller's thread that has to wait for the
// machine anyway, and drives it meanwhile. That saves two hand-overs between
// threads, some ten microseconds, which is as long as a small layer takes.
//
//   owner --wanted--> OwnerGives --> guest drives --> GuestGives --> owner
//
// A guest may come so often that waking the owner in between costs too much. If
// the last guest came soon after the one before it, the owner leaves the turn
// free for kOwnerYield after that guest has left. Events that come meanwhile
// wait, so a longer kOwnerYield would delay them. Thread-safe.
class DrivingTurn {
 public:
  // Longest time between two guests after which the owner expects another guest
  // as soon again.
  static constexpr absl::Duration kGuestReturnMax = absl::Microseconds(50);
  // Time for which the owner then leaves the turn free.
  static constexpr absl::Duration kOwnerYield = absl::Microseconds(100);

  // `interrupt` makes an owner that waits for events look at wanted().
  explicit DrivingTurn(std::function<void()> interrupt)
      : interrupt_(std::move(interrupt)) {}

  // Waits until the owner has the turn. Returns false once Stop was called.
  bool OwnerTakes();
  // True if the owner must give the turn: a guest waits for it, or Stop was
  // called.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // Ends the owner's turn.
  void OwnerGives();

  // Waits until the owner has given the turn to the calling guest. Returns
  // false at once if another guest has it or waits for it, or after Stop.
  bool GuestTakes();
  // Ends the guest's turn.
  void GuestGives();

  // True if a thread has the turn, or if the owner has just given it to a
  // guest. If false, the next thread that takes the turn sees all that was
  // written before this call.
  bool taken() const { return taken_.load(); }

  // Makes OwnerTakes return false from now on, and waits until no guest has the
  // turn. Does not wait for the owner.
  void Stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Makes the owner wait until the turn may be free for it.
  void Doze(Lock& lock);

  const std::function<void()> interrupt_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> taken_{false};

  // Not a nereus::Mutex: that one would wake the owner at every Unlock.
  std::mutex mu_;
  std::condition_variable given_;  // The owner has given the turn.
  std::condition_variable back_;   // The owner should look at the turn.
  bool owner_ = false;             // The owner has the turn.
  bool guest_ = false;             // A guest has the turn, or waits for it.
  bool stopped_ = false;           // Stop was called.
  bool comes_back_ = false;        // The last guest came soon after another.
  bool sleeps_ = false;            // The owner waits to be woken.
  int looks_ = 0;                  // Number of naps of the owner in a row.
  absl::Time given_at_ = absl::InfinitePast();  // End of the last guest's turn.
};

}  // namespace nereus
