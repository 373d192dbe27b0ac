#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/time/time.h"

namespace nereus {

// Gives the turn, the right to drive a machine, to one thread at a time. The
// owner is the driver thread, which does nothing else. A guest is a caller's
// thread that waits for the machine, and drives the machine while it waits. So
// the caller's thread need not wake the driver thread, and the driver thread
// need not wake the caller's thread. This saves about 10 microseconds, as much
// as a small layer takes in all.
//
//   owner --wanted--> OwnerGives --> guest drives --> GuestGives --> owner
//
// If guests come often, the owner should not wake up between two guests. Guests
// come often if a guest takes the turn at most kGuestReturnMax after the last
// guest has given it back. After such a guest, the owner leaves the turn free
// for kOwnerYield. Events that come while the turn is free wait for the next
// thread that takes it: a longer kOwnerYield would delay them more.
// Thread-safe.
class DrivingTurn {
 public:
  // Longest pause between two guests after which the owner expects a third
  // guest as soon. The pause lasts from the end of the first guest's turn to
  // the arrival of the second guest.
  static constexpr absl::Duration kGuestReturnMax = absl::Microseconds(50);
  // Time for which the owner leaves the turn free if it expects a guest.
  static constexpr absl::Duration kOwnerYield = absl::Microseconds(100);

  // `interrupt` wakes the owner if it waits for events, so that it calls
  // wanted().
  explicit DrivingTurn(std::function<void()> interrupt)
      : interrupt_(std::move(interrupt)) {}

  // Takes the turn for the owner: waits until the turn is free, and returns
  // true. Returns false if Stop was called before or meanwhile.
  bool OwnerTakes();
  // True if the owner must give the turn back: a guest waits for the turn, or
  // Stop was called.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  // Gives the owner's turn back.
  void OwnerGives();

  // Takes the turn for the calling guest: waits until the owner has given the
  // turn back, and returns true. Returns false at once if another guest has the
  // turn or waits for it, or if Stop was called before.
  bool GuestTakes();
  // Gives the guest's turn back.
  void GuestGives();

  // True if a thread has the turn, or if a guest is about to get it from the
  // owner. If false, the next thread that takes the turn sees everything that
  // the calling thread wrote before this call.
  bool taken() const { return taken_.load(); }

  // Makes OwnerTakes and GuestTakes return false from now on, and waits until
  // no guest has the turn. Does not wait for the owner.
  void Stop();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Makes the owner sleep, for a short time or until it is woken. OwnerTakes
  // calls this while the turn is not free for the owner, and then looks at the
  // turn again.
  void Doze(Lock& lock);

  const std::function<void()> interrupt_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> taken_{false};

  // Not a nereus::Mutex, because each nereus::Mutex::Unlock would wake the
  // owner. mu_ guards all fields below.
  std::mutex mu_;
  // Wakes a guest, or a thread in Stop, when the turn was given back.
  std::condition_variable given_;
  std::condition_variable back_;  // Wakes the owner to look at the turn.
  bool owner_ = false;            // True if the owner has the turn.
  bool guest_ = false;            // True if a guest has it or waits for it.
  bool stopped_ = false;          // True after Stop.
  bool comes_back_ = false;       // True if the owner expects another guest.
  bool sleeps_ = false;           // True if the owner sleeps until it is woken.
  int looks_ = 0;                 // Number of naps of the owner in a row.
  absl::Time given_at_ = absl::InfinitePast();  // End of the last guest's turn.
};

}  // namespace nereus
