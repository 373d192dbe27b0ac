#include "common/transport/socket/socket_channel.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

TEST(BlockedTimeTest, CountsFromAFullKernelToTheNextWriteThatFits) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/false, At(0));
  blocked.OnWritten(/*is_full=*/true, At(10));
  blocked.OnWritten(/*is_full=*/true, At(25));  // Still full.
  blocked.OnWritten(/*is_full=*/false, At(30));
  EXPECT_EQ(blocked.Take({}, At(50)), absl::Milliseconds(20));
  EXPECT_EQ(blocked.Take({}, At(60)), absl::ZeroDuration());
}

TEST(BlockedTimeTest, AWaitUnderWayIsSplitBetweenTwoIntervals) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/true, At(10));
  EXPECT_EQ(blocked.Take({}, At(40)), absl::Milliseconds(30));
  blocked.OnWritten(/*is_full=*/false, At(45));
  EXPECT_EQ(blocked.Take({}, At(80)), absl::Milliseconds(5));
}

TEST(BlockedTimeTest, TimeInWhichThePeerTakesNoBytesDoesNotCount) {
  BlockedTime blocked;
  blocked.OnWritten(/*is_full=*/true, At(0));
  EXPECT_EQ(blocked.Take(absl::Milliseconds(80), At(100)),
            absl::Milliseconds(20));
  EXPECT_EQ(blocked.Take(absl::Milliseconds(180), At(200)),
            absl::ZeroDuration());
  EXPECT_EQ(blocked.Take(absl::Milliseconds(180), At(300)),
            absl::Milliseconds(100));
}

}  // namespace
}  // namespace nereus
