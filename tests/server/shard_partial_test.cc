// Tests of partial rounds: a shard and its answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Length of a chunk of several frames.
constexpr int64_t kElements = 140000;

JobOptions Partial(Quorum quorum, int64_t staleness = kStalenessMax) {
  JobOptions options;
  options.rounds.quorum = quorum;
  options.rounds.staleness = staleness;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  return options;
}

JobPtr PartialJob(int workers, JobOptions options) {
  return TestJob(workers, 1, {VectorLayer("v", kElements)}, options);
}

// A shard with parameters that begin with 0. Worker r's gradient of step s is
// GradientOf(r, s) everywhere.
class PartialShard {
 public:
  explicit PartialShard(JobPtr job) : job_(std::move(job)), shard_(job_, 0) {
    Deliver(0, kInitialRound, 0.0f);
  }

  static float GradientOf(int rank, int64_t step) {
    return static_cast<float>((rank + 1) * 16 + step);
  }

  // Sends a whole contribution. Returns the workers that were answered, with
  // their parameters.
  std::vector<std::pair<int, float>> Push(int rank, int64_t step) {
    return Deliver(rank, step, GradientOf(rank, step));
  }
  // Its first frame alone.
  void PushHalf(int rank, int64_t step) {
    const auto frames = Frames(rank, step, GradientOf(rank, step));
    DeliverAll(shard_, PeerId::Worker(rank), {frames[0]});
  }
  void Enter(const std::function<void(Job&)>& edit) {
    job_ = EpochAfter(*job_, edit);
    Outbox out;
    shard_.OnEpoch(job_, out);
    entered_ = Answers(Carry(out));
  }
  const std::vector<std::pair<int, float>>& entered() const { return entered_; }

  absl::Status Refusal(int rank, int64_t step) {
    return shard_
        .OnHeader(PeerId::Worker(rank), Frames(rank, step, 1.0f)[0].header)
        .status();
  }

  float parameter() const {
    return shard_.chunk(0, 0).held().parameters.floats()[77];
  }
  // Value of the open sum, which is the same everywhere.
  float open_sum(int64_t element = 77) const {
    return shard_.chunk(0, 0).partial().sum().floats()[element];
  }
  int64_t round() const { return shard_.chunk(0, 0).round(); }
  const Shard& shard() const { return shard_; }
  const Job& job() const { return *job_; }

 private:
  std::vector<Frame> Frames(int rank, int64_t step, float value) const {
    return FramesOf(*job_, PeerId::Worker(rank), FrameKind::kContribution, 0, 0,
                    step, std::vector<float>(kElements, value));
  }
  std::vector<std::pair<int, float>> Deliver(int rank, int64_t step,
                                             float value) {
    return Answers(
        DeliverAll(shard_, PeerId::Worker(rank), Frames(rank, step, value)));
  }
  // First values of the answers; an answer has several frames.
  static std::vector<std::pair<int, float>> Answers(const Effects& effects) {
    std::vector<std::pair<int, float>> answers;
    for (const auto& sent : effects.sent) {
      EXPECT_TRUE(sent.to.has_value());
      const std::vector<float> values = FloatsOf(sent.frame.payload);
      if (sent.frame.header.offset != 0) continue;
      answers.push_back({sent.to->rank, values[0]});
    }
    return answers;
  }

  JobPtr job_;
  Shard shard_;
  std::vector<std::pair<int, float>> entered_;
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

TEST(ShardPartialTest, StalenessBoundsHowFarTheFastGo) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kSolo, 2)));
  EXPECT_EQ(shard.Push(0, 0).size(), 1u);
  EXPECT_EQ(shard.Push(0, 1).size(), 1u);
  // Worker 1's last fresh contribution would be three rounds ago.
  EXPECT_THAT(shard.Push(0, 2), IsEmpty());
  EXPECT_THAT(shard.shard().oldest_open_round()->missing_workers,
              ElementsAre(1));
  const float before = shard.parameter();
  const float after = before - (G(0, 2) + G(1, 0)) / 2;
  EXPECT_THAT(shard.Push(1, 0),
              ElementsAre(std::pair{0, after}, std::pair{1, after}));
}

TEST(ShardPartialTest, WithoutStalenessRoundsAreSynchronous) {
  PartialShard shard(PartialJob(3, Partial(Quorum::kSolo, 0)));
  EXPECT_THAT(shard.Push(0, 0), IsEmpty());
  EXPECT_THAT(shard.Push(1, 0), IsEmpty());
  EXPECT_EQ(shard.Push(2, 0).size(), 3u);
  EXPECT_EQ(shard.parameter(), -(G(0, 0) + G(1, 0) + G(2, 0)) / 3);
}

TEST(ShardPartialTest, RoundOfResynchronisationWaitsForAll) {
  JobOptions options = Partial(Quorum::kSolo);
  options.rounds.resync_every = 2;
  PartialShard shard(PartialJob(2, options));
  EXPECT_EQ(shard.Push(0, 0).size(), 1u);
  EXPECT_THAT(shard.Push(0, 1), IsEmpty());
  EXPECT_EQ(shard.Push(1, 0).size(), 1u);  // Late, and not what it waits for.
  const auto answers = shard.Push(1, 1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].second, answers[1].second);
  EXPECT_EQ(shard.Push(1, 2).size(), 1u);
}

// Half of it is in one round, the rest in the next: each element once.
TEST(ShardPartialTest, ContributionThatIsUnderWayMayBeSplit) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kSolo)));
  shard.PushHalf(1, 0);
  EXPECT_EQ(shard.open_sum(), G(1, 0));
  EXPECT_EQ(shard.shard().chunk(0, 0).partial().begun(1), false);
  Outbox out;
  const auto frames =
      FramesOf(shard.job(), PeerId::Worker(0), FrameKind::kContribution, 0, 0,
               0, std::vector<float>(kElements, G(0, 0)));
  DeliverAll(const_cast<Shard&>(shard.shard()), PeerId::Worker(0), frames);
  EXPECT_EQ(shard.round(), 1);
  const auto* values = shard.shard().chunk(0, 0).held().parameters.floats();
  EXPECT_EQ(values[0], -(G(0, 0) + G(1, 0)) / 2);
  EXPECT_EQ(values[kElements - 1], -G(0, 0) / 2);
  EXPECT_FALSE(shard.shard().chunk(0, 0).partial().whole());
}

// Its first half was in the round before: nothing of that is counted again.
TEST(ShardPartialTest, OtherHalfMayCloseARound) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kEach)));
  shard.PushHalf(1, 0);
  shard.Push(0, 0);
  EXPECT_EQ(shard.Push(1, 0).size(), 1u);
  const auto* values = shard.shard().chunk(0, 0).held().parameters.floats();
  EXPECT_EQ(values[0], -(G(0, 0) + G(1, 0)) / 2);
  EXPECT_EQ(values[kElements - 1], -(G(0, 0) + G(1, 0)) / 2);
}

TEST(ShardPartialTest, CountedFramesStayCountedInTheNextEpoch) {
  PartialShard shard(PartialJob(3, Partial(Quorum::kSolo)));
  shard.Push(0, 0);
  shard.Push(1, 0);  // In the open sum.
  shard.PushHalf(2, 0);
  shard.Enter({});
  EXPECT_EQ(shard.open_sum(), G(1, 0) + G(2, 0));
  // Asked again, worker 1 is answered again, and counts once.
  EXPECT_EQ(shard.Push(1, 0).size(), 1u);
  EXPECT_EQ(shard.open_sum(), G(1, 0) + G(2, 0));
  EXPECT_THAT(shard.Push(1, 0), IsEmpty());  // Once an epoch.
  // The other half of worker 2's.
  EXPECT_EQ(shard.Push(2, 0).size(), 1u);
  EXPECT_EQ(shard.open_sum(), G(1, 0) + G(2, 0));
  EXPECT_EQ(shard.open_sum(kElements - 1), G(1, 0) + G(2, 0));
}

TEST(ShardPartialTest, AnotherInitiatorIsDrawnIfTheFirstIsGone) {
  const JobPtr job = PartialJob(4, Partial(Quorum::kMajority));
  PartialShard shard(job);
  const int gone = job->InitiatorOf(0);
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == gone) continue;
    EXPECT_THAT(shard.Push(rank, 0), IsEmpty());
  }
  shard.Enter([&](Job& next) {
    std::erase_if(next.workers,
                  [&](const EpochWorker& each) { return each.rank == gone; });
  });
  // The worker that is drawn now has contributed already.
  EXPECT_EQ(shard.round(), 1);
  // The others ask again, and are answered.
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == gone) continue;
    EXPECT_EQ(shard.Push(rank, 0).size(), 1u) << rank;
  }
}

TEST(ShardPartialTest, LastAwaitedWorkerMayDie) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kSolo, 0)));
  EXPECT_THAT(shard.Push(0, 0), IsEmpty());
  shard.Enter([](Job& next) { next.workers.pop_back(); });
  EXPECT_EQ(shard.round(), 1);
  EXPECT_EQ(shard.parameter(), -G(0, 0));
}

TEST(ShardPartialTest, JoinerTakesPartFromItsFirstStep) {
  PartialShard shard(PartialJob(1, Partial(Quorum::kSolo, 1)));
  for (int64_t step = 0; step < 5; ++step) shard.Push(0, step);
  shard.Enter([](Job& next) { next.workers.push_back({1, 6}); });
  EXPECT_EQ(shard.Push(0, 5).size(), 1u);
  EXPECT_EQ(shard.Push(0, 6).size(), 1u);
  // From here on it counts as slow.
  EXPECT_THAT(shard.Push(0, 7), IsEmpty());
  EXPECT_EQ(shard.Push(1, 6).size(), 2u);
}

// The joiner was answered while older workers were ahead of the open round. All
// of these are gone, so the rounds without any worker are over.
TEST(ShardPartialTest, JoinerMayOutliveAllOtherWorkers) {
  PartialShard shard(PartialJob(2, Partial(Quorum::kEach, 5)));
  for (int64_t step = 0; step < 4; ++step) shard.Push(1, step);
  ASSERT_EQ(shard.round(), 0);
  const float before = shard.parameter();
  shard.Enter([](Job& next) { next.workers.push_back({2, 4}); });
  shard.Enter([](Job& next) {
    next.workers.erase(next.workers.begin(), next.workers.begin() + 2);
  });
  EXPECT_EQ(shard.round(), 4);
  EXPECT_EQ(shard.parameter(), before);
  EXPECT_THAT(shard.Push(2, 4), ElementsAre(std::pair{2, before - G(2, 4)}));
  EXPECT_EQ(shard.round(), 5);
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
  EXPECT_THAT(std::string(shard.Refusal(0, 1).message()),
              HasSubstr("step 0 of this worker is next"));
  shard.Push(0, 0);
  EXPECT_TRUE(shard.Refusal(0, 1).ok());
  EXPECT_THAT(std::string(shard.Refusal(0, 2).message()),
              HasSubstr("step 1 of this worker is next"));
}

TEST(ShardPartialTest, WithDecoupledRoundsWorkersAsk) {
  JobOptions options = Partial(Quorum::kSolo);
  options.overlap = Overlap::kDecoupled;
  const JobPtr job = PartialJob(2, options);
  PartialShard shard(job);
  EXPECT_THAT(shard.Push(0, 0), IsEmpty());
  EXPECT_EQ(shard.round(), 1);
  const Frame pull =
      PullFrame(*job, PeerId::Worker(0), FrameKind::kPull, 0, 0, 0);
  Shard& machine = const_cast<Shard&>(shard.shard());
  const Effects effects = DeliverAll(machine, PeerId::Worker(0), {pull});
  EXPECT_EQ(FloatsOf(effects.sent.at(0).frame.payload)[0], -G(0, 0) / 2);
  // The round is closed. A worker that asks before its own contribution is here
  // waits for that contribution, lest it is never sent again.
  const Frame early =
      PullFrame(*job, PeerId::Worker(1), FrameKind::kPull, 0, 0, 0);
  EXPECT_THAT(DeliverAll(machine, PeerId::Worker(1), {early}).sent, IsEmpty());
  EXPECT_THAT(shard.Push(1, 0), ElementsAre(std::pair{1, -G(0, 0) / 2}));
}

}  // namespace
}  // namespace nereus
