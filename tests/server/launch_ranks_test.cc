// Ranks of workers at the start of a job: those of the launcher, if each worker
// has another one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/coordinator_driver.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct Joiner {
  std::string name;
  std::optional<int32_t> rank;
  std::string machine;
};

// Lets the workers join in this order, with a server between the first two.
// Returns the names of the workers by their ranks.
std::vector<std::string> NamesByRank(const std::vector<Joiner>& joiners,
                                     CoordinatorDriver& driver) {
  SessionId session = kWorker0;
  for (const Joiner& joiner : joiners) {
    JoinRequest request = WorkerRequest(joiner.name);
    request.launch_rank = joiner.rank;
    request.host = {"", joiner.machine};
    driver.Say(session++, request);
    if (session == kWorker1) driver.Say(kShard0, ShardRequest(0));
  }
  std::vector<std::string> names;
  for (const auto& [rank, name] : driver.job().crew.worker_names) {
    names.push_back(name);
  }
  return names;
}

TEST(LaunchRanksTest, RanksAreThoseOfTheLauncherWhateverTheOrderOfJoining) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  EXPECT_THAT(NamesByRank({{"c", 2, ""}, {"a", 0, ""}, {"b", 1, ""}}, driver),
              ElementsAre("a", "b", "c"));
}

// A launcher that deals its processes out to the hosts in turn.
TEST(LaunchRanksTest, RanksOfAHostNeedNotBeAdjacent) {
  CoordinatorDriver driver(OptionsOf(4, 1));
  EXPECT_THAT(
      NamesByRank({{"d", 3, "y"}, {"c", 2, "x"}, {"b", 1, "y"}, {"a", 0, "x"}},
                  driver),
      ElementsAre("a", "b", "c", "d"));
  const Job& job = driver.job();
  EXPECT_EQ(job.workers[0].host, job.workers[2].host);
  EXPECT_EQ(job.workers[1].host, job.workers[3].host);
  EXPECT_NE(job.workers[0].host, job.workers[1].host);
  // The gradients of a host are added together all the same.
  EXPECT_THAT(job.LineupOf(0).at(0), ElementsAre(0, 2));
  EXPECT_THAT(job.LineupOf(0).at(1), ElementsAre(1, 3));
}

TEST(LaunchRanksTest, GapsInTheNumbersDoNotMakeGapsInTheRanks) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  EXPECT_THAT(NamesByRank({{"c", 70, ""}, {"a", 2, ""}, {"b", 5, ""}}, driver),
              ElementsAre("a", "b", "c"));
  EXPECT_EQ(driver.job().workers[2].rank, 2);
}

TEST(LaunchRanksTest, WithoutANumberOfEachTheOrderOfJoiningDecides) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  EXPECT_THAT(
      NamesByRank({{"c", 2, "x"}, {"a", {}, "y"}, {"b", 0, "x"}}, driver),
      ElementsAre("c", "b", "a"));
}

TEST(LaunchRanksTest, WithANumberTwiceTheOrderOfJoiningDecides) {
  CoordinatorDriver driver(OptionsOf(3, 1));
  EXPECT_THAT(NamesByRank({{"c", 1, ""}, {"a", 1, ""}, {"b", 0, ""}}, driver),
              ElementsAre("c", "a", "b"));
}

TEST(LaunchRanksTest, ProcessThatIsStartedAgainGetsANewRank) {
  CoordinatorDriver driver(OptionsOf(2, 1));
  NamesByRank({{"b", 1, ""}, {"a", 0, ""}}, driver);
  driver.Break(kWorker0);
  JoinRequest again = WorkerRequest("b");
  again.incarnation += 1000;
  again.launch_rank = 1;
  driver.Say(kWorker2, again);
  driver.ReportRest(0);
  EXPECT_THAT(driver.job().crew.worker_names,
              ElementsAre(Pair(0, "a"), Pair(2, "b")));
}

TEST(LaunchRanksTest, NumberOutOfRangeIsRefused) {
  for (const int32_t rank : {-1, kRanksMax}) {
    CoordinatorDriver driver(OptionsOf(2, 1));
    JoinRequest request = WorkerRequest("a");
    request.launch_rank = rank;
    const absl::Status refused =
        RefusalIn(driver.Say(kWorker0, request), kWorker0);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr(std::to_string(rank)));
  }
}

}  // namespace
}  // namespace nereus
