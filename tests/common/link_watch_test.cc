#include "common/driver/link_watch.h"

#include <gtest/gtest.h>

#include "common/transport/transport.h"

namespace nereus {
namespace {

const PeerId kA = PeerId::Worker(1);
const PeerId kB = PeerId::Worker(2);
const PeerId kC = PeerId::Shard(0);

absl::Time At(int seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

TrafficCount Count(PeerId peer, absl::Duration busy, int64_t bytes = 0) {
  TrafficCount count;
  count.peer = peer;
  count.busy = busy;
  count.bytes_sent = bytes;
  count.bytes_received = 2 * bytes;
  return count;
}

TEST(LinkWatchTest, FirstCallKnowsNoShare) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, absl::Seconds(3), 10), Count(kB, {}, 5)}, At(0),
                activity);
  EXPECT_FALSE(activity.busiest.has_value());
  EXPECT_EQ(activity.bytes_sent, 15);
  EXPECT_EQ(activity.bytes_received, 30);
}

TEST(LinkWatchTest, FindsTheBusiestLinkSinceTheLastCall) {
  LinkWatch watch;
  Activity activity;
  watch.Measure(
      {Count(kA, absl::Seconds(3), 900), Count(kB, {}), Count(kC, {})}, At(0),
      activity);
  watch.Measure(
      {Count(kA, absl::Seconds(3.2), 1000), Count(kB, absl::Seconds(1), 100),
       Count(kC, absl::Milliseconds(500), 100)},
      At(2), activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_EQ(activity.busiest->peer, kB);
  EXPECT_DOUBLE_EQ(activity.busiest->share, 0.5);
  // The lower median of the other two.
  EXPECT_DOUBLE_EQ(activity.busiest->others.value(), 0.1);
}

TEST(LinkWatchTest, LinksWithLittleTrafficAreNotCompared) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, {}), Count(kB, {})}, At(0), activity);
  watch.Measure({Count(kA, absl::Seconds(1), 100), Count(kB, {}, 20)}, At(2),
                activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_EQ(activity.busiest->peer, kA);
  EXPECT_FALSE(activity.busiest->others.has_value());
}

TEST(LinkWatchTest, SharedMemoryIsNoLink) {
  LinkWatch watch;
  Activity activity;
  TrafficCount memory = Count(kA, {}, 50);
  memory.busy.reset();
  watch.Measure({memory}, At(0), activity);
  watch.Measure({memory}, At(2), activity);
  EXPECT_FALSE(activity.busiest.has_value());
  EXPECT_EQ(activity.bytes_sent, 50);
}

TEST(LinkWatchTest, ANewConnectionThatCountsFromZeroIsNotBelowZero) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, absl::Seconds(3))}, At(0), activity);
  watch.Measure({Count(kA, absl::Seconds(1))}, At(2), activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_GE(activity.busiest->share, 0);
  EXPECT_LE(activity.busiest->share, 1);
}

TEST(LinkWatchTest, AShareIsNeverAboveOne) {
  LinkWatch watch;
  Activity activity;
  watch.Measure({Count(kA, {})}, At(0), activity);
  watch.Measure({Count(kA, absl::Seconds(9))}, At(2), activity);
  ASSERT_TRUE(activity.busiest.has_value());
  EXPECT_DOUBLE_EQ(activity.busiest->share, 1);
}

}  // namespace
}  // namespace nereus
