#include "worker/measure/probe_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/machine_harness.h"
#include "worker/measure/meter.h"

namespace nereus {
namespace {

// Returns the beginning of an epoch in which worker i runs on the host
// worker_hosts[i], and server i on server_hosts[i].
EpochStart StartOn(const std::vector<int32_t>& worker_hosts,
                   const std::vector<int32_t>& server_hosts,
                   JobOptions options = {}) {
  const auto workers = static_cast<int>(worker_hosts.size());
  const JobPtr job = TestJob(workers, static_cast<int>(server_hosts.size()),
                             {VectorLayer("a", 2)}, options);
  EpochStart start;
  start.job = EpochAfter(*job, [&](Job& next) {
    for (int rank = 0; rank < workers; ++rank) {
      next.workers[rank].host = worker_hosts[rank];
    }
  });
  for (size_t rank = 0; rank < server_hosts.size(); ++rank) {
    EpochMember& server = start.epoch_members.emplace_back();
    server.id = PeerId::Shard(static_cast<int32_t>(rank));
    server.host = server_hosts[rank];
  }
  return start;
}

ProbePlan PlanOf(EpochStart start, int rank) {
  start.self = PeerId::Worker(rank);
  return PlanProbes(start);
}

TEST(ProbePlanTest, OneWorkerOfAHostMeasuresTheLinkAndAnotherOneTheMemory) {
  const EpochStart start = StartOn({0, 1, 0, 1, 0}, {0, 1});
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(1));
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 1).target, PeerId::Shard(0));
  EXPECT_EQ(PlanOf(start, 2).probed, Probed::kMemory);
  EXPECT_EQ(PlanOf(start, 2).target, PeerId::Worker(0));
  EXPECT_EQ(PlanOf(start, 2).local_workers, 3);
  EXPECT_EQ(PlanOf(start, 3).probed, Probed::kMemory);
  EXPECT_EQ(PlanOf(start, 3).target, PeerId::Worker(1));
  EXPECT_EQ(PlanOf(start, 4).probed, Probed::kNothing);
}

TEST(ProbePlanTest, EveryWorkerAloneOnItsHostMeasuresItsLink) {
  // A host without a number belongs to one member only.
  const EpochStart start = StartOn({-1, -1, 3}, {-1, 3, 4});
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(0));
  EXPECT_EQ(PlanOf(start, 1).target, PeerId::Shard(1));
  // The second of the servers 0 and 2, which are on other hosts, would be
  // server 2; host 2 of the line-up gets the first one.
  EXPECT_EQ(PlanOf(start, 2).target, PeerId::Shard(0));
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(PlanOf(start, rank).probed, Probed::kLink);
  }
}

TEST(ProbePlanTest, WithoutServersOnOtherHostsAServerOfTheHostIsProbed) {
  const EpochStart start = StartOn({0, 0}, {0});
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 0).target, PeerId::Shard(0));
}

TEST(ProbePlanTest, WorkersOfAJobWithPartialRoundsMeasureNoMemory) {
  JobOptions options;
  options.rounds.quorum = Quorum::kMajority;
  const EpochStart start = StartOn({0, 0}, {0}, options);
  EXPECT_EQ(PlanOf(start, 0).probed, Probed::kLink);
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kNothing);
}

TEST(ProbePlanTest, WorkerThatHasLeftMeasuresNothing) {
  EpochStart start = StartOn({0, 0}, {0});
  start.job =
      EpochAfter(*start.job, [](Job& next) { next.workers.pop_back(); });
  EXPECT_EQ(PlanOf(start, 1).probed, Probed::kNothing);
}

TEST(MemoryRateTest, TwoCoresCarryOneTransferAtATime) {
  EXPECT_EQ(MemoryRateOf(5e9, 4, 1), 5e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 2), 5e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 4), 10e9);
  EXPECT_EQ(MemoryRateOf(5e9, 4, 64), 20e9);
  // A measurement that was disturbed.
  EXPECT_EQ(MemoryRateOf(1e12, 16, 64), 1e12);
}

}  // namespace
}  // namespace nereus
