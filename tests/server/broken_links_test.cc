#include "server/coordinator/broken_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/peer.h"

namespace nereus {
namespace {

const PeerId kWorker0 = PeerId::Worker(0);
const PeerId kWorker1 = PeerId::Worker(1);
const PeerId kWorker2 = PeerId::Worker(2);
const PeerId kShard0 = PeerId::Shard(0);
const PeerId kShard1 = PeerId::Shard(1);
const PeerId kShard2 = PeerId::Shard(2);

struct Loss {
  PeerId reporter;
  PeerId peer;
  int at_seconds;
};

// Losses of links, each in an epoch of its own. Shard 0 is in the coordinator's
// process.
struct Losses {
  const char* name;
  std::vector<Loss> losses;
  std::optional<PeerId> dropped;  // Member that the last loss drops.
  bool reached = true;            // False: the members were never connected.
  absl::Duration lease = absl::Seconds(10);
};

class BrokenLinksTest : public testing::TestWithParam<Losses> {};

TEST_P(BrokenLinksTest, ThirdLossInTheWindowDropsTheWorseEnd) {
  BrokenLinks links(/*own_shard=*/0, GetParam().lease);
  std::optional<PeerId> dropped;
  for (const Loss& loss : GetParam().losses) {
    EXPECT_FALSE(dropped.has_value());
    dropped = links.Note(loss.reporter, loss.peer, GetParam().reached,
                         absl::UnixEpoch() + absl::Seconds(loss.at_seconds));
    links.Take();
  }
  EXPECT_EQ(dropped, GetParam().dropped);
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenLinksTest,
    testing::Values(
        Losses{"EndWithMoreLostLinks",
               {{kWorker0, kWorker2, 0},
                {kWorker0, kWorker1, 20},
                {kWorker0, kWorker1, 40},
                {kWorker0, kWorker1, 60}},
               kWorker0},
        Losses{"HigherOfTwoWorkers",
               {{kWorker1, kWorker2, 0},
                {kWorker1, kWorker2, 20},
                {kWorker1, kWorker2, 40}},
               kWorker2},
        Losses{"HigherAlsoIfItReports",
               {{kWorker2, kWorker1, 0},
                {kWorker2, kWorker1, 20},
                {kWorker2, kWorker1, 40}},
               kWorker2},
        Losses{"LossesBeforeTheLastMinuteDoNotCount",
               {{kWorker0, kWorker1, 0},
                {kWorker0, kWorker1, 40},
                {kWorker0, kWorker1, 61}},
               std::nullopt},
        Losses{"OtherLinksOfLongAgoDoNotCount",
               {{kWorker1, kWorker0, 0},
                {kWorker1, kWorker2, 3600},
                {kWorker1, kWorker2, 3620},
                {kWorker1, kWorker2, 3640}},
               kWorker2},
        Losses{"LossesCountByLink",
               {{kWorker1, kShard1, 0},
                {kWorker1, kWorker0, 10},
                {kWorker1, kWorker2, 20},
                {kWorker1, kShard1, 30},
                {kWorker1, kWorker0, 40},
                {kWorker1, kWorker2, 50}},
               std::nullopt},
        // Reports of members that were never connected come minutes apart.
        Losses{"NeverConnectedCountsForTenMinutes",
               {{kWorker0, kWorker2, 0},
                {kWorker0, kWorker1, 180},
                {kWorker0, kWorker1, 360},
                {kWorker0, kWorker1, 540}},
               kWorker0,
               /*reached=*/false},
        // The server's network card is broken.
        Losses{"ServerWithMoreLostLinksThanTheWorker",
               {{kWorker0, kShard1, 0},
                {kShard1, kWorker1, 0},
                {kWorker0, kShard1, 10},
                {kShard1, kWorker1, 10},
                {kWorker0, kShard1, 20}},
               kShard1},
        Losses{"WorkerWithMoreLostLinksThanTheServer",
               {{kWorker0, kShard1, 0},
                {kWorker0, kShard2, 0},
                {kWorker0, kShard1, 10},
                {kWorker0, kShard2, 10},
                {kWorker0, kShard1, 20}},
               kWorker0},
        Losses{"WorkerIfBothLostAsMany",
               {{kShard1, kWorker1, 0},
                {kShard1, kWorker1, 10},
                {kShard1, kWorker1, 20}},
               kWorker1},
        Losses{"WorkerThoughTheOwnServerLostMore",
               {{kWorker0, kShard0, 0},
                {kWorker1, kShard0, 0},
                {kShard2, kShard0, 0},
                {kWorker0, kShard0, 10},
                {kWorker1, kShard0, 10},
                {kShard2, kShard0, 10},
                {kWorker0, kShard0, 20}},
               kWorker0},
        Losses{"OtherServerThoughTheOwnOneLostMore",
               {{kWorker0, kShard0, 0},
                {kShard2, kShard0, 0},
                {kShard2, kShard0, 10},
                {kShard2, kShard0, 20}},
               kShard2},
        // A connection that lets nothing through is lost once in a lease.
        Losses{"LossesOfFiveLeasesCount",
               {{kWorker0, kShard1, 0},
                {kWorker0, kShard1, 120},
                {kWorker0, kShard1, 240}},
               kWorker0,
               /*reached=*/true,
               absl::Minutes(1)}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nereus
