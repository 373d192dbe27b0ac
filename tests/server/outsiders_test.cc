#include "server/coordinator/outsiders.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace nereus {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(OutsidersTest, SilentMemberMayAskForAMinute) {
  Outsiders outsiders;
  outsiders.NoteSilent(PeerId::Worker(3), "w3", kStart);
  outsiders.Forget(kStart + absl::Seconds(60));
  EXPECT_TRUE(outsiders.has_silent());
  outsiders.Forget(kStart + absl::Seconds(61));
  EXPECT_FALSE(outsiders.has_silent());
}

TEST(OutsidersTest, PauseOfTheCoordinatorDoesNotShortenThatMinute) {
  Outsiders outsiders;
  outsiders.NoteSilent(PeerId::Worker(3), "w3", kStart);
  outsiders.Delay(absl::Seconds(50));
  outsiders.Forget(kStart + absl::Seconds(110));
  EXPECT_TRUE(outsiders.has_silent());
  outsiders.Forget(kStart + absl::Seconds(111));
  EXPECT_FALSE(outsiders.has_silent());
}

TEST(OutsidersTest, SilentMemberThatJoinsAgainIsForgotten) {
  Outsiders outsiders;
  outsiders.NoteSilent(PeerId::Worker(3), "w3", kStart);
  JoinRequest request;
  request.role = Role::kWorker;
  request.name = "w4";
  outsiders.NoteReturn(request);
  EXPECT_TRUE(outsiders.has_silent());
  request.name = "w3";
  outsiders.NoteReturn(request);
  EXPECT_FALSE(outsiders.has_silent());
}

}  // namespace
}  // namespace nereus
