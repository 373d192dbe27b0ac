#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace nereus {

// A mutex with absl::Mutex's waiting for conditions, on std::mutex:
// ThreadSanitizer sees how it orders threads, which it does not of a packaged
// Abseil that was built without it. Clang checks ABSL_GUARDED_BY on it.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }

  // Also wakes those who wait for a condition.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // While it is locked: once it is not, a waiter may destroy this.
    WakeWaiters();
    mu_.unlock();
  }

  // Unlocks, waits until `condition()` is true and locks again. It is called
  // with the mutex held, now and after everybody else's Unlock or Await.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    WakeWaiters();
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    ++waiters_;
    changed_.wait(lock, condition);
    --waiters_;
    lock.release();
  }

  // The same for `timeout` at most; returns condition() at the end.
  template <typename Condition>
  bool AwaitWithTimeout(Condition condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    // The clock's own arithmetic overflows on an infinite wait.
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
  // Before the mutex is given up: its holder may have changed what they wait
  // for.
  void WakeWaiters() {
    if (waiters_ > 0) changed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  int waiters_ = 0;  // Guarded by mu_.
};

// Holds a mutex while it exists.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Something that happens once, and that threads wait for. Thread-safe.
class Notification {
 public:
  // May be called again, without effect.
  void Notify() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    notified_ = true;
  }

  // Waits for `timeout` at most; whether it has happened.
  bool WaitWithTimeout(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return notified_; },
        timeout);
  }

 private:
  Mutex mu_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace nereus
