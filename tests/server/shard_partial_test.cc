// Tests of partial rounds: a shard and its answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "server/shard/shard.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Length of a chunk of several frames.
constexpr int64_t kElements = 140000;

JobOptions Partial(Quorum quorum, int64_t staleness = kStalenessMax) {
  JobOptions options = PlainSgd();
  options.rounds.quorum = quorum;
  options.rounds.staleness = staleness;
  return options;
}

JobPtr PartialJob(int workers, JobOptions options) {
  return TestJob(workers, 1, {VectorLayer("v", kElements)}, options);
}

// A shard with parameters that begin with 0. Worker r's gradient of step s is
// GradientOf(r, s) everywhere.
class PartialShard : public ShardDriver {
 public:
  explicit PartialShard(JobPtr job) : ShardDriver(std::move(job)) {
    Contribute(0, kInitialRound, std::vector<float>(kElements, 0.0f));
  }

  static float GradientOf(int rank, int64_t step) {
    return static_cast<float>((rank + 1) * 16 + step);
  }
  std::vector<Frame> Frames(int rank, int64_t step) const {
    return Contribution(rank, step,
                        std::vector<float>(kElements, GradientOf(rank, step)));
  }
  // Sends a whole contribution. Returns the workers that were answered, with
  // their parameters.
  std::vector<std::pair<int, float>> Push(int rank, int64_t step) {
    std::vector<std::pair<int, float>> answers;
    for (const auto& sent : Send(Frames(rank, step)).sent) {
      EXPECT_TRUE(sent.to.has_value());
      // An answer has several frames.
      if (sent.frame.header.offset != 0) continue;
      answers.push_back({sent.to->rank, FloatsOf(sent.frame.payload)[0]});
    }
    return answers;
  }

  const PartialRound& partial() { return shard().chunk(0, 0).partial(); }
  const float* values() {
    return shard().chunk(0, 0).held().parameters.floats();
  }
  float parameter() { return values()[77]; }
  // Value of the open sum.
  float open_sum() { return partial().sum().floats()[77]; }
  int64_t round() { return shard().chunk(0, 0).round(); }
};

float G(int rank, int64_t step) { return PartialShard::GradientOf(rank, step); }

TEST(ShardPartialTest, SoloRoundClosesWithTheFirstContribution) {
  PartialShard shard(PartialJob(4, Partial(Quorum::kSolo)));
  const float first = -G(2, 0) / 4;
  EXPECT_THAT(shard.Push(2, 0), ElementsAre(std::pair{2, first}));
  EXPECT_EQ(shard.round(), 1);
  // Late ones wait for nothing, and count in the next round.
  EXPECT_THAT(shard.Push(0, 0), ElementsAre(std::pair{0, first}));
  EXPECT_THAT(shard.Push(3, 0), ElementsAre(std::pair{3, first}));
  EXPECT_EQ(shard.parameter(), first);
  EXPECT_EQ(shard.open_sum(), G(0, 0) + G(3, 0));
  const float second = first - (G(0, 0) + G(3, 0) + G(2, 1)) / 4;
  EXPECT_THAT(shard.Push(2, 1), ElementsAre(std::pair{2, second}));
  EXPECT_EQ(shard.round(), 2);
  // The slowest has missed two rounds, and does its first step.
  EXPECT_THAT(shard.Push(1, 0), ElementsAre(std::pair{1, second}));
  EXPECT_EQ(shard.open_sum(), G(1, 0));
}

TEST(ShardPartialTest, MajorityWaitsForTheDrawnWorker) {
  const JobPtr job = PartialJob(5, Partial(Quorum::kMajority));
  PartialShard shard(job);
  for (int64_t round = 0; round < 8; ++round) {
    const int initiator = job->InitiatorOf(round);
    float sum = 0;
    std::vector<int> others;
    for (int rank = 0; rank < 5; ++rank) {
      sum += G(rank, round);
      if (rank == initiator) continue;
      others.push_back(rank);
      EXPECT_THAT(shard.Push(rank, round), IsEmpty());
    }
    ASSERT_EQ(shard.round(), round);
    EXPECT_THAT(shard.shard().oldest_open_round()->missing_workers,
                ElementsAre(initiator));
    const float before = shard.parameter();
    const auto answers = shard.Push(initiator, round);
    EXPECT_EQ(answers.size(), 5u);
    for (const auto& [rank, value] : answers) {
      EXPECT_EQ(value, before - sum / 5);
    }
    EXPECT_EQ(shard.round(), round + 1);
  }
}

TEST(ShardPartialTest, EveryWorkerIsDrawnNowAndThen) {
  const JobPtr job = PartialJob(5, Partial(Quorum::kMajority));
  std::vector<int> drawn(5, 0);
  for (int64_t round = 0; round < 5000; ++round) {
    ++drawn[job->InitiatorOf(round)];
  }
  // 1,000 each, with a deviation of 28.
  for (const int count : drawn) EXPECT_NEAR(count, 1000, 150);
}

TEST(ShardPartialTest, EachContributionIsAnUpdateWithQuorumEach) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kEach, 2)));
  float expected = 0;
  for (int64_t step = 0; step < 3; ++step) {
    expected -= G(1, step) / 2;
    // Two steps ahead, no more.
    const auto answers = shard.Push(1, step);
    if (step < 2) {
      EXPECT_THAT(answers, ElementsAre(std::pair{1, expected}));
    } else {
      EXPECT_THAT(answers, IsEmpty());
    }
    EXPECT_EQ(shard.parameter(), expected);
  }
  EXPECT_EQ(shard.round(), 0);
  EXPECT_THAT(shard.shard().oldest_open_round()->missing_workers,
              ElementsAre(0));
  expected -= G(0, 0) / 2;
  EXPECT_THAT(shard.Push(0, 0),
              ElementsAre(std::pair{1, expected}, std::pair{0, expected}));
  EXPECT_EQ(shard.round(), 1);
}

TEST(ShardPartialTest, WithoutStalenessRoundsAreSynchronous) {
  PartialShard shard(PartialJob(3, Partial(Quorum::kSolo, 0)));
  EXPECT_THAT(shard.Push(0, 0), IsEmpty());
  EXPECT_THAT(shard.Push(1, 0), IsEmpty());
  EXPECT_EQ(shard.Push(2, 0).size(), 3u);
  EXPECT_EQ(shard.parameter(), -(G(0, 0) + G(1, 0) + G(2, 0)) / 3);
}

// Half of it is in one round, the rest in the next: each element once.
TEST(ShardPartialTest, ContributionThatIsUnderWayMayBeSplit) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kSolo)));
  shard.Send({shard.Frames(1, 0)[0]});
  EXPECT_EQ(shard.open_sum(), G(1, 0));
  EXPECT_EQ(shard.partial().begun(1), false);
  shard.Push(0, 0);
  EXPECT_EQ(shard.round(), 1);
  const float* const values = shard.values();
  EXPECT_EQ(values[0], -(G(0, 0) + G(1, 0)) / 2);
  EXPECT_EQ(values[kElements - 1], -G(0, 0) / 2);
  EXPECT_FALSE(shard.partial().whole());
}

// Its first half was in the round before: nothing of that is counted again.
TEST(ShardPartialTest, OtherHalfMayCloseARound) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kEach)));
  shard.Send({shard.Frames(1, 0)[0]});
  shard.Push(0, 0);
  EXPECT_EQ(shard.Push(1, 0).size(), 1u);
  const float* const values = shard.values();
  EXPECT_EQ(values[0], -(G(0, 0) + G(1, 0)) / 2);
  EXPECT_EQ(values[kElements - 1], -(G(0, 0) + G(1, 0)) / 2);
}

// A worker that was to take part from step 2 on begins with step 1, since all
// others are gone. Nothing of that step is counted yet.
TEST(ShardPartialTest, FirstStepOfAWorkerMayBecomeEarlier) {
  for (const Quorum quorum :
       {Quorum::kSolo, Quorum::kMajority, Quorum::kEach}) {
    PartialShard shard(PartialJob(1, Partial(quorum)));
    shard.Push(0, 0);
    const float before = shard.parameter();
    shard.Enter([](Job& next) { next.workers.push_back({1, 2}); });
    shard.Enter([](Job& next) { next.workers = {{1, 1}}; });
    EXPECT_EQ(shard.round(), 1);
    EXPECT_EQ(shard.parameter(), before);
    EXPECT_THAT(shard.Push(1, 1), ElementsAre(std::pair{1, before - G(1, 1)}));
  }
}

TEST(ShardPartialTest, StepsComeInOrder) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kSolo)));
  shard.ExpectRefused(shard.Frames(0, 1)[0].header,
                      "step 0 of this worker is next");
  shard.Push(0, 0);
  EXPECT_FALSE(shard.Discards(shard.Frames(0, 1)[0]));
  shard.ExpectRefused(shard.Frames(0, 2)[0].header,
                      "step 1 of this worker is next");
}

TEST(ShardPartialTest, WithDecoupledRoundsWorkersAsk) {
  JobOptions options = Partial(Quorum::kSolo);
  options.overlap = Overlap::kDecoupled;
  const JobPtr job = PartialJob(2, options);
  PartialShard shard(job);
  EXPECT_THAT(shard.Push(0, 0), IsEmpty());
  EXPECT_EQ(shard.round(), 1);
  const Effects effects = shard.Pull(0, 0);
  EXPECT_EQ(FloatsOf(effects.sent.at(0).frame.payload)[0], -G(0, 0) / 2);
  // The round is closed. A worker that asks before its own contribution is here
  // waits for that contribution, lest it is never sent again.
  EXPECT_THAT(shard.Pull(1, 0).sent, IsEmpty());
  EXPECT_THAT(shard.Push(1, 0), ElementsAre(std::pair{1, -G(0, 0) / 2}));
}

}  // namespace
}  // namespace nereus
