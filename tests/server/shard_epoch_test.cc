// Tests of a shard from one epoch to the next: contributions that it forgets,
// values that it keeps, and workers that it answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An update subtracts the mean gradient.
JobOptions PlainSgd(OptimizerPlace place = OptimizerPlace::kServer) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  options.optimizer_place = place;
  return options;
}

// A layer on a shard, through several epochs.
class EpochShard {
 public:
  explicit EpochShard(const std::vector<float>& initial, int workers = 3,
                      JobOptions options = PlainSgd())
      : elements_(std::ssize(initial)),
        job_(TestJob(workers, 1, {VectorLayer("scale", elements_)}, options)),
        shard_(job_, 0) {
    Contribute(0, kInitialRound, initial);
  }

  const Job& job() const { return *job_; }
  Shard& shard() { return shard_; }

  void Enter(const std::function<void(Job&)>& edit = {}) {
    job_ = EpochAfter(*job_, edit);
    Outbox out;
    shard_.OnEpoch(job_, out);
    EXPECT_TRUE(out.empty());
  }
  // Enters the next epoch with these workers.
  void EnterWith(const std::vector<EpochWorker>& workers) {
    Enter([&](Job& job) { job.workers = workers; });
  }

  std::vector<Frame> Contribution(int rank, int64_t round,
                                  const std::vector<float>& values) const {
    return FramesOf(*job_, PeerId::Worker(rank), FrameKind::kContribution, 0, 0,
                    round, values);
  }
  Effects Contribute(int rank, int64_t round,
                     const std::vector<float>& values) {
    return DeliverAll(shard_, PeerId::Worker(rank),
                      Contribution(rank, round, values));
  }
  Frame PullOf(int rank, int64_t round) const {
    return PullFrame(*job_, PeerId::Worker(rank), FrameKind::kPull, 0, 0,
                     round);
  }
  Effects Pull(int rank, int64_t round) {
    return DeliverAll(shard_, PeerId::Worker(rank), {PullOf(rank, round)});
  }
  absl::Status Refusal(int rank, const FrameHeader& header) const {
    const absl::Status status =
        shard_.OnHeader(PeerId::Worker(rank), header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return status;
  }
  void ExpectDiscarded(int rank, const Frame& frame) const {
    const auto landing = shard_.OnHeader(PeerId::Worker(rank), frame.header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
  }
  std::vector<float> Result(const Effects& effects, int64_t round) const {
    return ValuesIn(effects.sent, FrameKind::kResult, 0, 0, round, elements_);
  }
  std::vector<float> parameters() const {
    return FloatsOf(shard_.chunk(0, 0).held().parameters);
  }

 private:
  const int64_t elements_;
  JobPtr job_;
  Shard shard_;
};

TEST(ShardEpochTest, DeadWorkersPartOfAnOpenRoundDoesNotCount) {
  EpochShard running({10});
  running.Contribute(0, 0, {1});
  running.Contribute(2, 0, {100});
  running.EnterWith({{0, 0}, {1, 0}});
  EXPECT_THAT(running.shard().oldest_open_round()->missing_workers,
              ElementsAre(0, 1));
  EXPECT_THAT(running.Contribute(0, 0, {1}).sent, IsEmpty());
  const Effects closed = running.Contribute(1, 0, {3});
  ASSERT_EQ(closed.sent.size(), 1u);
  EXPECT_EQ(closed.sent[0].to, std::nullopt);
  EXPECT_EQ(closed.sent[0].frame.header.epoch, running.job().epoch);
  EXPECT_THAT(running.Result(closed, 0), ElementsAre(10 - (1 + 3) / 2));
}

// The coordinator relies on the report of a frozen shard.
TEST(ShardEpochTest, FrozenShardTakesNoContributions) {
  EpochShard running({10}, /*workers=*/2);
  running.Contribute(0, 0, {1});
  const Frame last = running.Contribution(1, 0, {3}).front();
  const auto landing = running.shard().OnHeader(PeerId::Worker(1), last.header);
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_NE(landing->kind, Landing::Kind::kDiscard);
  running.shard().Freeze();
  running.ExpectDiscarded(1, last);
  EXPECT_EQ(running.shard().closed_round(), kInitialRound);
  // The header came before Freeze, the payload after.
  Outbox out;
  running.shard().OnFrame(PeerId::Worker(1), last, out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(running.shard().chunk(0, 0).round(), 0);
  EXPECT_THAT(running.Result(running.Pull(1, kInitialRound), kInitialRound),
              ElementsAre(10));
  running.Enter();
  running.Contribute(0, 0, {1});
  EXPECT_THAT(running.Result(running.Contribute(1, 0, {3}), 0), ElementsAre(8));
}

TEST(ShardEpochTest, DeadWorkersPartOfAClosedRoundCounts) {
  EpochShard running({10});
  running.Contribute(0, 0, {1});
  running.Contribute(2, 0, {2});
  EXPECT_THAT(running.Result(running.Contribute(1, 0, {3}), 0), ElementsAre(8));
  running.EnterWith({{0, 0}, {1, 0}});
  EXPECT_THAT(running.parameters(), ElementsAre(8));
  running.Contribute(0, 1, {1});
  EXPECT_THAT(running.Result(running.Contribute(1, 1, {5}), 1),
              ElementsAre(8 - 3));
}

TEST(ShardEpochTest, IncompleteContributionIsForgotten) {
  constexpr int64_t kElements = 2 * kFrameElementsMax + 7;
  for (const bool deterministic : {false, true}) {
    JobOptions options = PlainSgd();
    options.deterministic = deterministic;
    EpochShard running(std::vector<float>(kElements, 0.0f), 2, options);
    const auto stale = IntegerValues(kElements, 50);
    for (const int rank : {1, 0}) {
      DeliverAll(running.shard(), PeerId::Worker(rank),
                 {running.Contribution(rank, 0, stale)[1]});
    }
    running.Enter();  // All members stay: a connection was lost.
    const auto first = IntegerValues(kElements, 2);
    const auto second = IntegerValues(kElements, 4);
    EXPECT_THAT(running.Contribute(1, 0, second).sent, IsEmpty());
    const Effects closed = running.Contribute(0, 0, first);
    std::vector<float> expected(kElements);
    for (int64_t i = 0; i < kElements; ++i) {
      expected[i] = -0.5f * (first[i] + second[i]);
    }
    EXPECT_EQ(running.Result(closed, 0), expected);
  }
}

class ShardRepeatTest : public testing::TestWithParam<OptimizerPlace> {
 protected:
  // Returns the result of a round: all parameters are 9, or all means are 1.
  std::vector<float> Expected() const {
    const float value = GetParam() == OptimizerPlace::kServer ? 9.0f : 1.0f;
    return std::vector<float>(kElements, value);
  }
  std::vector<float> Values(float value) const {
    return std::vector<float>(kElements, value);
  }
  static constexpr int64_t kElements = kFrameElementsMax + 1;  // Two frames.
};

TEST_P(ShardRepeatTest, PullOfAClosedRoundIsAnsweredOnceInEachEpoch) {
  EpochShard running(Values(10), 3, PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(0));
  running.Contribute(1, 0, Values(1));
  EXPECT_EQ(running.Result(running.Contribute(2, 0, Values(2)), 0), Expected());
  // In the epoch that closed the round, every worker gets its result unasked.
  for (const Frame& frame : running.Contribution(1, 0, Values(1))) {
    running.ExpectDiscarded(1, frame);
  }

  for (int epoch = 0; epoch < 2; ++epoch) {
    running.EnterWith({{0, 0}, {1, 0}});
    for (const int rank : {1, 0}) {
      const auto frames = running.Contribution(rank, 0, Values(77));
      for (const Frame& frame : frames) running.ExpectDiscarded(rank, frame);
      const Effects answer = running.Pull(rank, 0);
      EXPECT_EQ(answer.sent.size(), 2u);
      EXPECT_EQ(SentTo(answer.sent, PeerId::Worker(rank)).size(), 2u);
      EXPECT_EQ(running.Result(answer, 0), Expected());
      EXPECT_EQ(answer.sent[0].frame.header.epoch, running.job().epoch);
      for (const Frame& frame : frames) running.ExpectDiscarded(rank, frame);
      running.ExpectDiscarded(rank, running.PullOf(rank, 0));
    }
  }

  // Repeated contributions do not count.
  running.Contribute(0, 1, Values(1));
  const Effects closed = running.Contribute(1, 1, Values(1));
  const bool here = GetParam() == OptimizerPlace::kServer;
  EXPECT_EQ(running.Result(closed, 1), Values(here ? 8 : 1));
}

TEST_P(ShardRepeatTest, ResultIsSentAgainWhileTheNextRoundIsSummedUp) {
  EpochShard running(Values(10), 2, PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(2));
  running.Contribute(1, 0, Values(0));
  running.Enter();
  running.Contribute(0, 1, Values(50));
  const Effects again = running.Pull(1, 0);
  EXPECT_EQ(running.Result(again, 0), Expected());
  // A slow connection sends it when the next round is closed already.
  running.Contribute(1, 1, Values(50));
  EXPECT_EQ(running.Result(again, 0), Expected());
}

TEST_P(ShardRepeatTest, RoundsBeforeTheLastAreNotSentAgain) {
  EpochShard running(Values(10), 1, PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(1));
  running.Contribute(0, 1, Values(1));
  running.Enter();
  running.ExpectDiscarded(0, running.PullOf(0, 0));
  EXPECT_EQ(running.Pull(0, 1).sent.size(), 2u);
}

// The parameters are still those before the round.
TEST_P(ShardRepeatTest, PullOfAnOpenRoundIsDiscarded) {
  EpochShard running(Values(10), 2, PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(2));
  running.Enter();
  running.ExpectDiscarded(0, running.PullOf(0, 0));
  running.Contribute(0, 0, Values(2));
  // Both workers get the result of a round of this epoch unasked.
  const Effects closed = running.Contribute(1, 0, Values(0));
  EXPECT_EQ(running.Result(closed, 0), Expected());
  running.ExpectDiscarded(1, running.PullOf(1, 0));
}

INSTANTIATE_TEST_SUITE_P(Places, ShardRepeatTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST(ShardEpochTest, JoinerContributesFromItsFirstStepOn) {
  EpochShard running({0}, 2);
  running.Contribute(0, 0, {1});
  running.EnterWith({{0, 0}, {1, 0}, {5, 2}});
  for (const int64_t round : {0, 1}) {
    if (round == 0) {
      const auto early = running.Contribution(5, 0, {100});
      EXPECT_THAT(std::string(running.Refusal(5, early[0].header).message()),
                  HasSubstr("this worker takes part from round 2 on"));
    }
    EXPECT_THAT(running.shard().oldest_open_round()->missing_workers,
                ElementsAre(0, 1));
    running.Contribute(0, round, {2});
    EXPECT_EQ(running.Contribute(1, round, {4}).sent.size(), 1u);
  }
  EXPECT_THAT(running.parameters(), ElementsAre(-6));
  EXPECT_THAT(running.shard().oldest_open_round()->missing_workers,
              ElementsAre(0, 1, 5));
  running.Contribute(5, 2, {6});
  running.Contribute(1, 2, {0});
  EXPECT_EQ(running.Contribute(0, 2, {0}).sent.size(), 1u);
  EXPECT_THAT(running.parameters(), ElementsAre(-8));
}

TEST(ShardEpochTest, JoinerIsSentTheRoundBeforeItsFirstStep) {
  EpochShard running({0}, 2);
  running.EnterWith({{0, 0}, {1, 0}, {2, 1}, {3, 1}});
  EXPECT_THAT(running.Pull(2, 0).sent, IsEmpty());
  running.Contribute(0, 0, {2});
  const Effects closed = running.Contribute(1, 0, {4});
  // Together with the round's workers, and once.
  ASSERT_EQ(closed.sent.size(), 2u);
  EXPECT_EQ(closed.sent[0].to, std::nullopt);
  EXPECT_THAT(closed.sent[0].workers, ElementsAre(0, 1));
  EXPECT_EQ(closed.sent[1].to, PeerId::Worker(2));
  EXPECT_THAT(ValuesIn(SentTo(closed.sent, PeerId::Worker(2)),
                       FrameKind::kResult, 0, 0, 0, 1),
              ElementsAre(-3));
  // A worker that asks later is answered at once.
  const Effects pulled = running.Pull(3, 0);
  ASSERT_EQ(pulled.sent.size(), 1u);
  EXPECT_EQ(pulled.sent[0].to, PeerId::Worker(3));
  EXPECT_THAT(running.Result(pulled, 0), ElementsAre(-3));
  running.ExpectDiscarded(3, running.PullOf(3, 0));
}

// The joiner needs only the result of the round before its first.
TEST(ShardEpochTest, JoinerThatAsksEarlyIsSentOneResult) {
  EpochShard running({0}, 2);
  running.EnterWith({{0, 0}, {1, 0}, {5, 2}});
  EXPECT_THAT(running.Pull(5, 1).sent, IsEmpty());
  running.Contribute(0, 0, {2});
  const Effects before = running.Contribute(1, 0, {4});
  ASSERT_EQ(before.sent.size(), 1u);
  EXPECT_THAT(before.sent[0].workers, ElementsAre(0, 1));
  running.Contribute(0, 1, {2});
  const Effects last = running.Contribute(1, 1, {4});
  ASSERT_EQ(last.sent.size(), 2u);
  EXPECT_THAT(last.sent[0].workers, ElementsAre(0, 1));
  EXPECT_EQ(last.sent[1].to, PeerId::Worker(5));
  for (const int rank : {0, 1, 5}) running.Contribute(rank, 2, {2});
  EXPECT_THAT(running.parameters(), ElementsAre(-8));
}

TEST(ShardEpochTest, PullOfAnotherRoundThanTheOneBeforeTheFirstIsRefused) {
  EpochShard running({0}, 2);
  running.EnterWith({{0, 0}, {2, 4}});
  for (const int64_t round : {-1, 2, 4, 5}) {
    EXPECT_THAT(
        std::string(
            running.Refusal(2, running.PullOf(2, round).header).message()),
        HasSubstr("this worker takes part from round 4 on"))
        << round;
  }
  EXPECT_TRUE(running.shard()
                  .OnHeader(PeerId::Worker(2), running.PullOf(2, 3).header)
                  .ok());
}

// Workers own the layer: a joiner gets it from one of them.
TEST(ShardEpochTest, MeansAreNotGivenToJoiners) {
  EpochShard running({5}, 1, PlainSgd(OptimizerPlace::kWorker));
  running.Contribute(0, 0, {1});
  running.Enter([](Job& job) {
    job.workers = {{0, 0}, {1, 1}};
    job.history.donor = 0;
  });
  EXPECT_THAT(
      std::string(running.Refusal(1, running.PullOf(1, 0).header).message()),
      HasSubstr("this server has the values of round -1"));
}

TEST(ShardEpochTest, WorkerMayAskAgainInTheNextEpoch) {
  EpochShard running({7}, 2);
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_THAT(running.Result(running.Pull(1, kInitialRound), kInitialRound),
                ElementsAre(7));
    running.ExpectDiscarded(1, running.PullOf(1, kInitialRound));
    running.Enter();
  }
}

TEST(ShardEpochTest, EarlyPullsOfTheOldEpochAreNotAnswered) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 1)}, PlainSgd());
  Shard shard(job, 0);
  DeliverAll(shard, PeerId::Worker(1),
             {PullFrame(*job, PeerId::Worker(1), FrameKind::kPull, 0, 0,
                        kInitialRound)});
  const JobPtr next = EpochAfter(*job);
  Outbox out;
  shard.OnEpoch(next, out);
  const Effects initial =
      DeliverAll(shard, PeerId::Worker(0),
                 FramesOf(*next, PeerId::Worker(0), FrameKind::kContribution, 0,
                          0, kInitialRound, {3}));
  EXPECT_THAT(initial.sent, IsEmpty());
}

TEST(ShardEpochTest, NextWorkerGivesTheInitialValuesIfTheFirstDies) {
  const JobPtr job = TestJob(3, 1, {VectorLayer("scale", 65537)}, PlainSgd());
  Shard shard(job, 0);
  DeliverAll(shard, PeerId::Worker(0),
             {FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0, 0,
                       kInitialRound, IntegerValues(65537, 1))[1]});
  const JobPtr next = EpochAfter(*job, [](Job& j) {
    j.workers = {{1, 0}, {2, 0}};
  });
  Outbox out;
  shard.OnEpoch(next, out);
  const auto frames = [&](int rank) {
    return FramesOf(*next, PeerId::Worker(rank), FrameKind::kContribution, 0, 0,
                    kInitialRound, IntegerValues(65537, rank + 10));
  };
  EXPECT_THAT(std::string(shard.OnHeader(PeerId::Worker(2), frames(2)[0].header)
                              .status()
                              .message()),
              HasSubstr("worker 1 alone sends the initial parameters"));
  DeliverAll(shard, PeerId::Worker(1), frames(1));
  EXPECT_EQ(FloatsOf(shard.chunk(0, 0).held().parameters),
            IntegerValues(65537, 11));
}

TEST(ShardEpochTest, FramesOfWorkersOutsideTheEpochAreRefused) {
  EpochShard running({0}, 3);
  running.Enter([](Job& job) {
    job.workers = {{0, 0}};
    job.crew.left_workers = {1};
  });
  EXPECT_THAT(
      std::string(running.Refusal(1, running.Contribution(1, 0, {1})[0].header)
                      .message()),
      HasSubstr("the sender must be a worker"));
  EXPECT_THAT(
      std::string(running.Refusal(2, running.Contribution(2, 0, {1})[0].header)
                      .message()),
      HasSubstr("not one of the job's 1 workers"));
  EXPECT_EQ(running.Contribute(0, 0, {1}).sent.size(), 1u);
}

TEST(ShardEpochTest, OptimizersStateIsKept) {
  JobOptions options = PlainSgd();
  options.optimizer.momentum = 0.5f;
  EpochShard running({0}, 2, options);
  running.Contribute(0, 0, {8});
  running.Contribute(1, 0, {8});
  running.EnterWith({{1, 0}});
  running.Contribute(1, 1, {0});
  EXPECT_THAT(running.parameters(), ElementsAre(-12));  // Velocities 8 and 4.
}

TEST(ShardEpochTest, LayerByFactorsOutlivesAllWorkersOfItsFirstRound) {
  const JobPtr job = TestJob(1, 1, {FactorLayer("fc", 2, 2, false, 1)},
                             PlainSgd(), Scheme::kFactor);
  Shard shard(job, 0);
  DeliverAll(shard, PeerId::Worker(0),
             FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0, 0,
                      kInitialRound, IntegerValues(4, 0)));
  const JobPtr next = EpochAfter(*job, [](Job& j) { j.workers = {{3, 10}}; });
  Outbox out;
  shard.OnEpoch(next, out);
  EXPECT_EQ(FloatsOf(shard.chunk(0, 0).held().parameters), IntegerValues(4, 0));
}

TEST(ShardReportTest, ClosedRoundIsTheLastThatAllChunksHaveClosed) {
  const JobPtr job = TestJob(1, 1,
                             {VectorLayer("first", 4), VectorLayer("second", 4),
                              FactorLayer("fc", 2, 2, false, 1)},
                             PlainSgd(), Scheme::kFactor);
  Shard shard(job, 0);
  const auto contribute = [&](int layer, int64_t round) {
    DeliverAll(shard, PeerId::Worker(0),
               FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution,
                        layer, 0, round, IntegerValues(4, 0)));
  };
  EXPECT_EQ(shard.closed_round(), kInitialRound);
  contribute(0, kInitialRound);
  contribute(0, 0);
  EXPECT_EQ(shard.closed_round(), kInitialRound);
  contribute(1, kInitialRound);
  EXPECT_EQ(shard.closed_round(), kInitialRound);
  contribute(1, 0);
  EXPECT_EQ(shard.closed_round(), 0);
  contribute(1, 1);
  EXPECT_EQ(shard.closed_round(), 0);
  contribute(0, 1);
  EXPECT_EQ(shard.closed_round(), 1);
}

TEST(ShardReportTest, ShardWithoutRoundsReportsNone) {
  const JobPtr job = TestJob(1, 3, {FactorLayer("fc", 2, 2, false, 1)},
                             PlainSgd(), Scheme::kFactor);
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(Shard(job, index).closed_round(), std::nullopt) << index;
  }
}

}  // namespace
}  // namespace nereus
