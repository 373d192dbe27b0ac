#include "server/coordinator/broken_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/time/time.h"
#include "common/protocol/peer.h"

namespace nereus {
namespace {

using testing::Optional;

const PeerId kWorker0 = PeerId::Worker(0);
const PeerId kWorker1 = PeerId::Worker(1);
const PeerId kWorker2 = PeerId::Worker(2);

class BrokenLinksTest : public testing::Test {
 protected:
  // Notes a loss, and begins the next epoch.
  std::optional<PeerId> Lose(PeerId one, PeerId other, bool reached,
                             absl::Duration at) {
    const auto dropped =
        links_.Note(one, other, reached, absl::UnixEpoch() + at);
    links_.Take();
    return dropped;
  }

  BrokenLinks links_{/*own_shard=*/-1};
};

TEST_F(BrokenLinksTest, ThirdLossWithinAMinuteDropsTheEndWithMoreLosses) {
  EXPECT_FALSE(Lose(kWorker0, kWorker2, true, absl::Seconds(0)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, true, absl::Seconds(20)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, true, absl::Seconds(40)));
  EXPECT_THAT(Lose(kWorker0, kWorker1, true, absl::Seconds(60)),
              Optional(kWorker0));
}

TEST_F(BrokenLinksTest, LossesBeforeTheLastMinuteDoNotCount) {
  EXPECT_FALSE(Lose(kWorker0, kWorker1, true, absl::Seconds(0)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, true, absl::Seconds(40)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, true, absl::Seconds(61)));
}

// Reports of members that were never connected come minutes apart.
TEST_F(BrokenLinksTest, LossesOfMembersNeverConnectedCountForTenMinutes) {
  EXPECT_FALSE(Lose(kWorker0, kWorker2, false, absl::Minutes(0)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, false, absl::Minutes(3)));
  EXPECT_FALSE(Lose(kWorker0, kWorker1, false, absl::Minutes(6)));
  EXPECT_THAT(Lose(kWorker0, kWorker1, false, absl::Minutes(9)),
              Optional(kWorker0));
}

}  // namespace
}  // namespace nereus
