#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace nereus {

// Mutex on which threads can wait for conditions, as on absl::Mutex. This class
// uses std::mutex: ThreadSanitizer knows it, and reports false races with the
// mutex of an Abseil that was compiled without ThreadSanitizer, such as that of
// Debian. Clang checks ABSL_GUARDED_BY with this class.
//
// Threads wait for a condition and not for a signal: after each Unlock and each
// Await, all waiters test their conditions. So no code has to wake them, if the
// conditions read only what this mutex guards.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Waits until no other thread holds the mutex, and takes it.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }

  // Unlocks, and wakes the threads that wait for a condition.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // Wakes the waiters before it unlocks: after the unlock, a thread that was
    // awake already may see that its condition is true, and destroy this mutex.
    WakeWaiters();
    mu_.unlock();
  }

  // Waits until `condition()` is true. The mutex is unlocked while the thread
  // waits, and held again on return. `condition` is called with the mutex held:
  // at once, and after each Unlock or Await of another thread.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    WakeWaiters();
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    ++waiters_;
    changed_.wait(lock, condition);
    --waiters_;
    lock.release();
  }

  // Waits like Await, for `timeout` at most. Returns condition() at the end.
  template <typename Condition>
  bool AwaitWithTimeout(Condition condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    // Waits for a year at most: the arithmetic of the C++ clocks overflows on
    // an infinite wait.
    const absl::Duration wait = std::min(timeout, absl::Hours(24 * 365));
    WakeWaiters();
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    ++waiters_;
    const bool met =
        changed_.wait_for(lock, absl::ToChronoNanoseconds(wait), condition);
    --waiters_;
    lock.release();
    return met;
  }

 private:
  // Wakes all waiters. Called before a thread gives the mutex up, because that
  // thread may have changed what the conditions read.
  void WakeWaiters() {
    if (waiters_ > 0) changed_.notify_all();
  }

  std::mutex mu_;                    // The mutex itself.
  std::condition_variable changed_;  // Wakes waiters.
  int waiters_ = 0;  // Number of waiting threads; guarded by mu_.
};

// Locks a mutex when it is constructed, and unlocks it when it is destroyed.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  // Unlocks, which wakes waiters (Mutex::Unlock).
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;  // Not owned.
};

}  // namespace nereus
