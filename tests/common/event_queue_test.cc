#include "common/network/event_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

TEST(EventQueueTest, QueueStartsEmptyAtTheUnixEpoch) {
  EventQueue queue;
  EXPECT_EQ(queue.now(), absl::UnixEpoch());
  EXPECT_FALSE(queue.RunNext());
  EXPECT_EQ(queue.now(), absl::UnixEpoch());
  EXPECT_EQ(queue.events_run(), 0);
}

TEST(EventQueueTest, EventsRunInOrderOfTimeAndSetTheClock) {
  EventQueue queue;
  std::vector<int> order;
  const absl::Time start = queue.now();
  queue.After(absl::Seconds(3), [&] { order.push_back(3); });
  queue.After(absl::Seconds(1), [&] { order.push_back(1); });
  queue.At(start + absl::Seconds(2), [&] { order.push_back(2); });
  EXPECT_TRUE(queue.RunNext());
  EXPECT_EQ(queue.now(), start + absl::Seconds(1));
  EXPECT_EQ(order, std::vector<int>{1});
  while (queue.RunNext()) {
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(queue.now(), start + absl::Seconds(3));
  EXPECT_EQ(queue.events_run(), 3);
}

TEST(EventQueueTest, EventsOfEqualTimeRunInOrderOfScheduling) {
  EventQueue queue;
  std::vector<int> order;
  const absl::Time time = queue.now() + absl::Seconds(1);
  for (int i = 0; i < 1000; ++i) {
    queue.At(time, [&order, i] { order.push_back(i); });
  }
  while (queue.RunNext()) {
  }
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST(EventQueueTest, PastEventsRunNowAndTheClockNeverGoesBack) {
  EventQueue queue;
  std::vector<int> order;
  queue.After(absl::Seconds(5), [&] {
    queue.After(absl::ZeroDuration(), [&] { order.push_back(1); });
    queue.At(absl::UnixEpoch(), [&] { order.push_back(2); });
    queue.At(absl::InfinitePast(), [&] { order.push_back(3); });
  });
  absl::Time last = queue.now();
  while (queue.RunNext()) {
    EXPECT_GE(queue.now(), last);
    last = queue.now();
  }
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(queue.now(), absl::UnixEpoch() + absl::Seconds(5));
}

TEST(EventQueueTest, EventsMayScheduleEvents) {
  EventQueue queue;
  int left = 1000;
  std::function<void()> next = [&] {
    if (--left > 0) queue.After(absl::Milliseconds(1), next);
  };
  queue.After(absl::Milliseconds(1), next);
  while (queue.RunNext()) {
  }
  EXPECT_EQ(left, 0);
  EXPECT_EQ(queue.now(), absl::UnixEpoch() + absl::Seconds(1));
}

TEST(EventQueueTest, EventIsDestroyedAfterItHasRun) {
  EventQueue queue;
  auto held = std::make_shared<int>(0);
  queue.After(absl::ZeroDuration(), [held] { ++*held; });
  EXPECT_EQ(held.use_count(), 2);
  queue.RunNext();
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

// Compares the queue with a stable sort.
TEST(EventQueueTest, OrderIsThatOfAStableSort) {
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    EventQueue queue;
    std::vector<std::pair<int64_t, int>> expected;
    std::vector<int> order;
    for (int i = 0; i < 300; ++i) {
      const auto delay = static_cast<int64_t>(random.Below(20));
      expected.emplace_back(delay, i);
      queue.After(absl::Nanoseconds(delay),
                  [&order, i] { order.push_back(i); });
    }
    absl::c_stable_sort(expected, [](const auto& a, const auto& b) {
      return a.first < b.first;
    });
    while (queue.RunNext()) {
    }
    ASSERT_EQ(order.size(), expected.size());
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_EQ(order[i], expected[i].second);
    }
  }
}

TEST(EventQueueDeathTest, NegativeDelayEndsTheProcess) {
  EventQueue queue;
  EXPECT_DEATH(queue.After(-absl::Nanoseconds(1), [] {}), "-1ns");
}

}  // namespace
}  // namespace nereus
