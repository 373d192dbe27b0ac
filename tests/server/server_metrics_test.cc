#include "server/process/server_metrics.h"

#include <gtest/gtest.h>

namespace nereus {
namespace {

absl::Time At(int milliseconds) {
  return absl::UnixEpoch() + absl::Milliseconds(milliseconds);
}

FrameHeader Contribution(uint32_t layer, uint32_t chunk, int64_t round) {
  FrameHeader header;
  header.kind = FrameKind::kContribution;
  header.layer = layer;
  header.chunk = chunk;
  header.round = round;
  return header;
}

TEST(ContributionTimesTest, ARoundLastsFromItsFirstFrameToItsLast) {
  ContributionTimes times;
  times.OnFrame(Contribution(0, 0, 5), At(100));
  times.OnFrame(Contribution(0, 0, 5), At(101));
  times.OnFrame(Contribution(0, 0, 5), At(120));
  EXPECT_EQ(times.times().count(), 0) << "no later round has begun";
  times.OnFrame(Contribution(0, 0, 6), At(500));
  EXPECT_EQ(times.times().count(), 1);
  EXPECT_EQ(times.times().sum(), absl::Milliseconds(20));
}

TEST(ContributionTimesTest, ChunksAndLayersAreApart) {
  ContributionTimes times;
  times.OnFrame(Contribution(0, 0, 5), At(100));
  times.OnFrame(Contribution(0, 1, 6), At(200));
  times.OnFrame(Contribution(1, 0, 6), At(300));
  EXPECT_EQ(times.times().count(), 0);
  for (const auto& [layer, chunk] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
    times.OnFrame(Contribution(layer, chunk, 7), At(400));
  }
  EXPECT_EQ(times.times().count(), 3);
  EXPECT_EQ(times.times().sum(), absl::ZeroDuration());
}

TEST(ContributionTimesTest, LateFramesAndOtherKindsDoNotCount) {
  ContributionTimes times;
  times.OnFrame(Contribution(0, 0, 5), At(100));
  times.OnFrame(Contribution(0, 0, 6), At(200));
  times.OnFrame(Contribution(0, 0, 5), At(900));
  FrameHeader local = Contribution(0, 0, 6);
  local.kind = FrameKind::kLocal;
  times.OnFrame(local, At(950));
  times.OnFrame(Contribution(0, 0, 7), At(1000));
  EXPECT_EQ(times.times().count(), 2);
  EXPECT_EQ(times.times().sum(), absl::ZeroDuration());
}

TEST(ContributionTimesTest, AJobThatGoesBackBeginsAnew) {
  ContributionTimes times;
  times.OnFrame(Contribution(0, 0, 5), At(100));
  times.Restart();
  times.OnFrame(Contribution(0, 0, 2), At(200));
  times.OnFrame(Contribution(0, 0, 2), At(207));
  times.OnFrame(Contribution(0, 0, 3), At(300));
  EXPECT_EQ(times.times().count(), 1);
  EXPECT_EQ(times.times().sum(), absl::Milliseconds(7));
}

}  // namespace
}  // namespace nereus
