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
const PeerId kShard0 = PeerId::Shard(0);
const PeerId kShard1 = PeerId::Shard(1);
const PeerId kShard2 = PeerId::Shard(2);

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

  BrokenLinks links_{/*own_shard=*/0, /*lease=*/absl::Seconds(10)};
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

// The server's network card is broken, so that it loses both workers again and
// again.
TEST_F(BrokenLinksTest, ServerWithMoreLostLinksThanTheWorkerIsDropped) {
  for (const int at : {0, 10}) {
    EXPECT_FALSE(Lose(kWorker0, kShard1, true, absl::Seconds(at)));
    EXPECT_FALSE(Lose(kShard1, kWorker1, true, absl::Seconds(at)));
  }
  EXPECT_THAT(Lose(kWorker0, kShard1, true, absl::Seconds(20)),
              Optional(kShard1));
}

TEST_F(BrokenLinksTest, WorkerWithMoreLostLinksThanTheServerIsDropped) {
  for (const int at : {0, 10}) {
    EXPECT_FALSE(Lose(kWorker0, kShard1, true, absl::Seconds(at)));
    EXPECT_FALSE(Lose(kWorker0, kShard2, true, absl::Seconds(at)));
  }
  EXPECT_THAT(Lose(kWorker0, kShard1, true, absl::Seconds(20)),
              Optional(kWorker0));
}

TEST_F(BrokenLinksTest, OfAWorkerAndAServerWithAsManyLostLinksTheWorkerGoes) {
  for (const int at : {0, 10}) {
    EXPECT_FALSE(Lose(kShard1, kWorker1, true, absl::Seconds(at)));
  }
  EXPECT_THAT(Lose(kShard1, kWorker1, true, absl::Seconds(20)),
              Optional(kWorker1));
}

TEST_F(BrokenLinksTest, CoordinatorsOwnServerIsNeverDropped) {
  for (const int at : {0, 10}) {
    EXPECT_FALSE(Lose(kWorker0, kShard0, true, absl::Seconds(at)));
    EXPECT_FALSE(Lose(kWorker1, kShard0, true, absl::Seconds(at)));
    EXPECT_FALSE(Lose(kShard2, kShard0, true, absl::Seconds(at)));
  }
  EXPECT_THAT(Lose(kWorker0, kShard0, true, absl::Seconds(20)),
              Optional(kWorker0));
  EXPECT_THAT(Lose(kShard2, kShard0, true, absl::Seconds(20)),
              Optional(kShard2));
}

// A connection that lets nothing through is lost once in a lease.
TEST(BrokenLinksOfALongLeaseTest, LossesOfFiveLeasesCount) {
  BrokenLinks links(/*own_shard=*/-1, /*lease=*/absl::Minutes(1));
  std::optional<PeerId> dropped;
  for (const int at : {0, 2, 4}) {
    EXPECT_FALSE(dropped);
    dropped = links.Note(kWorker0, kShard1, true,
                         absl::UnixEpoch() + absl::Minutes(at));
    links.Take();
  }
  EXPECT_THAT(dropped, Optional(kWorker0));
}

}  // namespace
}  // namespace nereus
