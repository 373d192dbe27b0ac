// Members of an epoch: reports about the rows of their factors, the connections
// that they keep, and lists of receivers.

#include "common/protocol/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/connections.h"
#include "common/protocol/outbox.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<LayerSpec> SomeModel() {
  return {{"conv", LayerKind::kConvolution, 8, 9, 72, 4},
          {"fc", LayerKind::kFullyConnected, 4, 3, 12, 0, true}};
}

TEST(FactorRowsTest, LostFactorsStayLostAndTheLargestRowsCount) {
  FactorRows sum;
  EXPECT_TRUE(sum.Add({{0, 4, 7}}));
  EXPECT_FALSE(sum.Add({{0, 3, 0}}));
  EXPECT_TRUE(sum.Add({{0, 5, kFactorsLost}}));
  EXPECT_FALSE(sum.Add({{0, 5, 9}}));
  EXPECT_THAT(sum.rows, ElementsAre(0, 5, kFactorsLost));
}

TEST(FactorRowsTest, ReportOfTheModelIsAccepted) {
  for (const int64_t rows :
       {kRowsNotKnown, kFactorsLost, int64_t{1}, kLayerRowsMax}) {
    const absl::Status status = CheckFactorRows({{0, rows}}, SomeModel());
    EXPECT_TRUE(status.ok()) << status;
  }
}

struct BadReport {
  const char* name;
  std::vector<int64_t> rows;
  const char* message;
};

class FactorRowsErrorTest : public testing::TestWithParam<BadReport> {};

TEST_P(FactorRowsErrorTest, IsRefusedByTheWrongValue) {
  EXPECT_THAT(CheckFactorRows({GetParam().rows}, SomeModel()),
              IsInvalidArgument(GetParam().message));
}

const BadReport kFactorRowsErrorRows[] = {
    {"TooFew", {0}, "has 1 layers, the model has 2"},
    {"TooMany", {0, 0, 0}, "has 3 layers, the model has 2"},
    {"Negative", {0, -2}, "layer fc has -2 rows"},
    {"TooLarge", {0, kLayerRowsMax + 1}, "layer fc has 1073741825 rows"},
    {"NoFactors", {4, 0}, "layer conv has 4 rows of factors"},
    {"NoFactorsToLose", {kFactorsLost, 0}, "layer conv has -1 rows of factors"},
};

INSTANTIATE_TEST_SUITE_P(All, FactorRowsErrorTest,
                         testing::ValuesIn(kFactorRowsErrorRows),
                         [](const auto& info) { return info.param.name; });

// Makes an epoch of 3 workers and 3 servers, as `self` sees it. The incarnation
// of each member is its index in the list.
EpochStart StartOf(PeerId self, JobPtr job) {
  EpochStart start;
  start.self = self;
  start.job = std::move(job);
  for (int rank = 0; rank < 3; ++rank) {
    for (const PeerId id : {PeerId::Worker(rank), PeerId::Shard(rank)}) {
      start.epoch_members.push_back(
          {id, start.epoch_members.size(), PeerName(id)});
    }
  }
  return start;
}

JobPtr JobWith(Scheme scheme) {
  return TestJob(3, 3, {FactorLayer("fc", 4, 4, true, 2)}, {}, scheme);
}

std::vector<PeerId> DialledBy(PeerId self, const JobPtr& job) {
  std::vector<PeerId> dialled;
  for (const EpochMember& member : ConnectionsOf(StartOf(self, job)).dialled) {
    EXPECT_EQ(member.data_address, PeerName(member.id));
    dialled.push_back(member.id);
  }
  return dialled;
}

TEST(ConnectionsTest, WorkersDialServersAndOnlyNeededWorkers) {
  EXPECT_THAT(DialledBy(PeerId::Worker(2), JobWith(Scheme::kServer)),
              UnorderedElementsAre(PeerId::Shard(0), PeerId::Shard(1),
                                   PeerId::Shard(2)));
}

TEST(ConnectionsTest, HigherRankDialsBetweenWorkersWithOwnedLayers) {
  for (const Scheme scheme : {Scheme::kFactor, Scheme::kRing}) {
    EXPECT_THAT(DialledBy(PeerId::Worker(1), JobWith(scheme)),
                UnorderedElementsAre(PeerId::Shard(0), PeerId::Shard(1),
                                     PeerId::Shard(2), PeerId::Worker(0)));
  }
}

TEST(ConnectionsTest, ServersWithoutBackupsDialNothing) {
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(DialledBy(PeerId::Shard(rank), JobWith(Scheme::kRing)),
                IsEmpty());
  }
}

TEST(ConnectionsTest, HigherRankDialsBetweenPrimaryAndBackup) {
  const JobPtr job = EpochAfter(*JobWith(Scheme::kServer), [](Job& next) {
    next.options.backup = true;
    next.shard_servers = {{0, 2}, {1, -1}, {2, -1}};
  });
  EXPECT_THAT(DialledBy(PeerId::Shard(0), job), IsEmpty());
  EXPECT_THAT(DialledBy(PeerId::Shard(1), job), IsEmpty());
  EXPECT_THAT(DialledBy(PeerId::Shard(2), job), ElementsAre(PeerId::Shard(0)));
}

TEST(ConnectionsTest, MembersThatLeftOrWereReplacedAreDropped) {
  const JobPtr job = JobWith(Scheme::kServer);
  const EpochStart before = StartOf(PeerId::Worker(0), job);
  EpochStart start = before;
  std::erase_if(start.epoch_members, [](const EpochMember& member) {
    return member.id == PeerId::Worker(2);
  });
  for (EpochMember& member : start.epoch_members) {
    if (member.id == PeerId::Shard(1)) member.incarnation = 99;
  }
  EXPECT_THAT(ConnectionsOf(start, &before).dropped,
              UnorderedElementsAre(PeerId::Worker(2), PeerId::Shard(1)));
  EXPECT_EQ(RosterOf(start).at(PeerId::Shard(1)), 99u);
  EXPECT_FALSE(RosterOf(start).contains(PeerId::Worker(2)));
}

TEST(ConnectionsTest, BrokenConnectionsAreDroppedOnlyAtTheirEnds) {
  const JobPtr job = JobWith(Scheme::kServer);
  const auto dropped_by = [&](PeerId self) {
    const EpochStart before = StartOf(self, job);
    EpochStart start = before;
    start.broken_links = {{PeerId::Worker(1), PeerId::Shard(0)}};
    return ConnectionsOf(start, &before).dropped;
  };
  EXPECT_THAT(dropped_by(PeerId::Worker(1)), ElementsAre(PeerId::Shard(0)));
  EXPECT_THAT(dropped_by(PeerId::Shard(0)), ElementsAre(PeerId::Worker(1)));
  EXPECT_THAT(dropped_by(PeerId::Worker(0)), IsEmpty());
}

const std::vector<EpochWorker>& Workers() {
  static const auto& workers =
      *new std::vector<EpochWorker>{{1, 0}, {4, 0}, {5, 7}};
  return workers;
}

TEST(RankListTest, HasAllRanksInOrder) {
  EXPECT_THAT(*RanksOf(Workers()), ElementsAre(1, 4, 5));
  EXPECT_THAT(*RanksOf({}), IsEmpty());
}

TEST(RankListTest, LeavesOutTheSender) {
  EXPECT_THAT(*RanksOf(Workers(), 4), ElementsAre(1, 5));
  EXPECT_THAT(*RanksOf(Workers(), 3), ElementsAre(1, 4, 5));
  EXPECT_THAT(*RanksOf(absl::MakeConstSpan(Workers()).first(1), 1), IsEmpty());
}

}  // namespace
}  // namespace nereus
