#include "common/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace nereus {
namespace {

TEST(MutexTest, AwaitWakesTheWaiterOfATrueCondition) {
  Mutex mu;
  bool waiting = false;
  bool first = false;
  bool over = false;
  std::thread waiter([&] {
    MutexLock lock(&mu);
    waiting = true;
    EXPECT_TRUE(mu.AwaitWithTimeout([&] { return first; }, absl::Minutes(1)));
    over = true;
  });
  {
    MutexLock lock(&mu);
    mu.Await([&] { return waiting; });
    first = true;
    // Await releases the mutex, so no Unlock is needed.
    EXPECT_TRUE(mu.AwaitWithTimeout([&] { return over; }, absl::Minutes(1)));
  }
  waiter.join();
}

TEST(MutexTest, TimeoutReturnsWhetherTheConditionHolds) {
  Mutex mu;
  MutexLock lock(&mu);
  EXPECT_FALSE(
      mu.AwaitWithTimeout([] { return false; }, absl::Milliseconds(1)));
  EXPECT_TRUE(mu.AwaitWithTimeout([] { return true; }, absl::ZeroDuration()));
  EXPECT_TRUE(
      mu.AwaitWithTimeout([] { return true; }, absl::InfiniteDuration()));
}

}  // namespace
}  // namespace nereus
