// Tests of the primary and backup of each shard in the next epoch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/coordinator/epoch_change.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobPtr BackedUp(int shards, std::vector<ShardServers> shard_servers = {}) {
  JobOptions options;
  options.backup = true;
  const JobPtr job = TestJob(
      2, shards,
      {VectorLayer("a", 2), VectorLayer("b", 2), VectorLayer("c", 2)}, options);
  if (shard_servers.empty()) return job;
  return EpochAfter(*job,
                    [&](Job& next) { next.shard_servers = shard_servers; });
}

// Servers that live, and those that have come.
EpochChange Servers(const std::vector<int>& live,
                    const std::vector<int>& come = {},
                    const std::vector<int32_t>& whole = {}) {
  EpochChange change;
  for (const int rank : live) change.servers.push_back({rank, false, {}});
  for (const int rank : come) change.servers.push_back({rank, true, {}});
  change.current_backups = whole;
  return change;
}

struct Case {
  std::string name;
  int shards = 2;
  std::vector<ShardServers> now;  // Empty: as at first.
  EpochChange change;
  std::vector<ShardServers> next;  // Empty: a shard is lost.
};

class NextHoldersTest : public testing::TestWithParam<Case> {};

TEST_P(NextHoldersTest, Table) {
  const Case& param = GetParam();
  const JobPtr job = BackedUp(param.shards, param.now);
  const auto next = NextHolders(*job, param.change);
  if (param.next.empty()) {
    EXPECT_EQ(next.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(next.status().message()),
                HasSubstr("was lost: no server has all of its values"));
    return;
  }
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, param.next);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, NextHoldersTest,
    testing::Values(
        Case{"AllLive", 2, {}, Servers({0, 1}), {{0, 1, true}, {1, 0, true}}},
        Case{"OneGone", 2, {}, Servers({1}), {{1, -1, false}, {1, -1, false}}},
        Case{"OneReplaced",
             2,
             {},
             Servers({1}, {0}),
             {{1, 0, false}, {1, 0, false}}},
        Case{"BothGone", 2, {}, Servers({}), {}},
        Case{"BothReplaced", 2, {}, Servers({}, {0, 1}), {}},
        Case{"StillAlone",
             2,
             {{1, -1, false}, {1, -1, false}},
             Servers({1}),
             {{1, -1, false}, {1, -1, false}}},
        Case{"OneComes",
             2,
             {{1, -1, false}, {1, -1, false}},
             Servers({1}, {0}),
             {{1, 0, false}, {1, 0, false}}},
        Case{"TheLastOneGoes",
             2,
             {{1, -1, false}, {1, -1, false}},
             Servers({}, {0, 1}),
             {}},
        Case{"NotWholeYet",
             2,
             {{1, 0, false}, {1, 0, false}},
             Servers({0, 1}),
             {{1, 0, false}, {1, 0, false}}},
        Case{"OneIsWhole",
             2,
             {{1, 0, false}, {1, 0, false}},
             Servers({0, 1}, {}, {1}),
             {{1, 0, false}, {1, 0, true}}},
        // Its own shard goes back.
        Case{"BothAreWhole",
             2,
             {{1, 0, false}, {1, 0, true}},
             Servers({0, 1}, {}, {0, 1}),
             {{0, 1, true}, {1, 0, true}}},
        Case{"WholeAndReplaced",
             2,
             {{1, 0, false}, {1, 0, false}},
             Servers({1}, {0}, {0, 1}),
             {{1, 0, false}, {1, 0, false}}},
        Case{"WholeAndGone",
             2,
             {{1, 0, false}, {1, 0, false}},
             Servers({1}, {}, {0, 1}),
             {{1, -1, false}, {1, -1, false}}},
        Case{"WholeAsItsServerGoes",
             2,
             {{1, 0, false}, {1, 0, false}},
             Servers({0}, {}, {0, 1}),
             {{0, -1, false}, {0, -1, false}}},
        Case{"WholeAsItsServerIsReplaced",
             2,
             {{1, 0, true}, {1, 0, true}},
             Servers({0}, {1}),
             {{0, 1, false}, {0, 1, false}}},
        Case{"NotWholeAsItsServerGoes",
             2,
             {{1, 0, true}, {1, 0, false}},
             Servers({0}, {1}),
             {}},
        Case{"NobodyIsWhole",
             2,
             {{1, -1, false}, {1, -1, false}},
             Servers({1}, {}, {0, 1, 2, -1}),
             {{1, -1, false}, {1, -1, false}}},
        Case{"OfThreeOneGone",
             3,
             {},
             Servers({0, 1}),
             {{0, 1, true}, {1, -1, false}, {0, -1, false}}},
        Case{"OfThreeTwoGone", 3, {}, Servers({0}), {}},
        Case{"OfThreeTwoGoneAfterEachOther",
             3,
             {{0, 1, true}, {1, -1, false}, {0, -1, false}},
             Servers({0}),
             {}},
        Case{"OfThreeOneBack",
             3,
             {{0, 1, true}, {1, -1, false}, {0, -1, false}},
             Servers({0, 1}, {2}),
             {{0, 1, true}, {1, 2, false}, {0, 2, false}}},
        Case{"OfThreeWholeAgain",
             3,
             {{0, 1, true}, {1, 2, false}, {0, 2, false}},
             Servers({0, 1, 2}, {}, {1, 2}),
             {{0, 1, true}, {1, 2, true}, {2, 0, true}}},
        Case{"OfFourTwoThatShareNothing",
             4,
             {},
             Servers({1, 3}),
             {{1, -1, false}, {1, -1, false}, {3, -1, false}, {3, -1, false}}},
        Case{"OfFourTwoNeighbours", 4, {}, Servers({0, 3}), {}}),
    [](const auto& info) { return info.param.name; });

TEST(NextHoldersTest, WithoutBackupsEveryServerIsNeeded) {
  const JobPtr job = TestJob(2, 2, {VectorLayer("a", 2), VectorLayer("b", 2)});
  EXPECT_EQ(*NextHolders(*job, Servers({0, 1}, {}, {0, 1})),
            FirstShardServers(2, false));
  for (const EpochChange& change : {Servers({0}), Servers({0}, {1})}) {
    EXPECT_THAT(std::string(NextHolders(*job, change).status().message()),
                HasSubstr("shard 1 was lost"));
  }
}

// The job that comes of it can be made, and is what all members are told.
TEST(NextHoldersTest, NextEpochHasTheNextHolders) {
  const JobPtr job = BackedUp(2);
  EpochChange change = Servers({1});
  change.servers[0].report.closed_rounds = {{0, 3}, {1, 4}};
  EpochChange::Worker worker;
  worker.report.begun_step = 4;
  change.workers = {worker};
  const auto next = MakeNextEpoch(*job, 6, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->job->shard_servers, *NextHolders(*job, change));
  EXPECT_FALSE(next->job->Holds(0));
  EXPECT_TRUE(next->job->Holds(1));
  change.servers.clear();
  EXPECT_EQ(MakeNextEpoch(*job, 6, change).status().code(),
            absl::StatusCode::kAborted);
}

// If all workers are gone, the closed rounds of the next primaries count, and
// not those of a backup that is behind.
TEST(NextHoldersTest, NewWorkersGoOnFromTheNextPrimaries) {
  const JobPtr job = BackedUp(2, {{1, 0, false}, {1, 0, false}});
  EpochChange change = Servers({0, 1});
  change.servers[0].report.closed_rounds = {{0, kInitialRound},
                                            {1, kInitialRound}};
  change.servers[1].report.closed_rounds = {{0, 8}, {1, 7}};
  change.joiners = {5};
  const auto next = MakeNextEpoch(*job, 7, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(next->job->workers, ElementsAre(EpochWorker{5, 8}));
}

// All live servers have the shards' files.
TEST(FreshHoldersTest, FreshHoldersAreTheFirstOnesOfTheLiveServers) {
  const JobPtr job =
      BackedUp(3, {{1, 0, false}, {1, 2, false}, {2, -1, false}});
  const auto restarted = [&](const EpochChange& servers) {
    EpochChange change = servers;
    change.joiners = {5};
    return MakeRestartedEpoch(*job, 7, {5, 18}, change);
  };
  for (const EpochChange& all :
       {Servers({0, 1, 2}), Servers({1}, {0, 2}), Servers({}, {0, 1, 2})}) {
    const auto next = restarted(all);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->job->shard_servers, FirstShardServers(3, true));
  }
  const auto two = restarted(Servers({1}, {2}));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_THAT(two->job->shard_servers,
              ElementsAre(ShardServers{1, -1, false}, ShardServers{1, 2, true},
                          ShardServers{2, -1, false}));
  const auto one = restarted(Servers({1}));
  EXPECT_EQ(one.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(one.status().message()),
              HasSubstr("shard 2 was lost: server 2 is not a member, nor is "
                        "the server after it"));
}

TEST(FreshHoldersTest, RestartWithoutBackupsNeedsAllServers) {
  const JobPtr job = TestJob(2, 2, {VectorLayer("a", 2), VectorLayer("b", 2)});
  EpochChange change = Servers({0});
  change.joiners = {5};
  EXPECT_EQ(MakeRestartedEpoch(*job, 7, {5, 18}, change).status().code(),
            absl::StatusCode::kAborted);
  change = Servers({0}, {1});
  change.joiners = {5};
  const auto next = MakeRestartedEpoch(*job, 7, {5, 18}, change);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->job->shard_servers, FirstShardServers(2, false));
}

}  // namespace
}  // namespace nereus
