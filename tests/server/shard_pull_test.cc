// Tests of a shard in a job with Overlap::kDecoupled: workers ask for each
// result.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kWorkers = 2;

// Updates are parameters - mean gradient, exactly.
JobOptions Decoupled(OptimizerPlace place) {
  JobOptions options;
  options.overlap = Overlap::kDecoupled;
  options.optimizer_place = place;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  return options;
}

class ShardPullTest : public testing::Test {
 protected:
  explicit ShardPullTest(OptimizerPlace place = OptimizerPlace::kServer)
      : job_(TestJob(kWorkers, 1, {VectorLayer("scale", 3)}, Decoupled(place))),
        shard_(job_, 0) {
    Contribute(0, kInitialRound, {1, 2, 3});
  }

  Effects Contribute(int worker, int64_t round,
                     const std::vector<float>& values) {
    return DeliverAll(shard_, PeerId::Worker(worker),
                      FramesOf(*job_, PeerId::Worker(worker),
                               FrameKind::kContribution, 0, 0, round, values));
  }
  absl::StatusOr<Delivery> Pull(int worker, int64_t round) {
    return Deliver(shard_, PeerId::Worker(worker),
                   PullFrame(*job_, PeerId::Worker(worker), FrameKind::kPull, 0,
                             0, round));
  }
  void CloseRound(int64_t round) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      Contribute(worker, round, {2, 2, 2});
    }
  }
  std::vector<float> Values(const Effects& effects, int64_t round) {
    return ValuesIn(effects.sent, FrameKind::kResult, 0, 0, round, 3);
  }
  void ExpectRefused(int worker, int64_t round, const std::string& why) {
    const absl::Status status = Pull(worker, round).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  JobPtr job_;
  Shard shard_;
};

TEST_F(ShardPullTest, WorkersAreSentOnlyRequestedResults) {
  ASSERT_TRUE(Pull(1, 0).ok());
  EXPECT_THAT(Contribute(0, 0, {2, 2, 2}).sent, IsEmpty());
  // Worker 1 has asked before, worker 0 does so after.
  const Effects closed = Contribute(1, 0, {4, 4, 4});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, PeerId::Worker(1));
  EXPECT_THAT(Values(closed, 0), ElementsAre(-2, -1, 0));
  const auto pulled = Pull(0, 0);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  ASSERT_THAT(pulled->effects.sent, SizeIs(1));
  EXPECT_EQ(pulled->effects.sent[0].to, PeerId::Worker(0));
  EXPECT_THAT(Values(pulled->effects, 0), ElementsAre(-2, -1, 0));
}

TEST_F(ShardPullTest, RoundIsSentOnce) {
  for (int64_t round = 0; round < 3; ++round) {
    CloseRound(round);
    const auto first = Pull(0, round);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_THAT(first->effects.sent, SizeIs(1));
    const auto second = Pull(0, round);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->landing, Landing::Kind::kDiscard);
  }
}

TEST_F(ShardPullTest, OnlyTheOpenAndTheLastRoundCanBePulled) {
  CloseRound(0);
  CloseRound(1);
  ExpectRefused(0, 0, "round 2 is open");
  ExpectRefused(0, 3, "round 2 is open");
  EXPECT_TRUE(Pull(0, 1).ok());
  EXPECT_TRUE(Pull(0, 2).ok());
}

TEST_F(ShardPullTest, WorkerWithoutAPartInARoundGetsNoResult) {
  CloseRound(0);
  job_ = EpochAfter(*job_, [](Job& job) {
    job.workers.push_back({7, 2});
    job.history.first_step = 2;
  });
  Outbox out;
  shard_.OnEpoch(job_, out);
  Carry(out);
  ExpectRefused(7, 0, "takes part from round 2");
  // The values before its first round are its first values.
  ASSERT_TRUE(Pull(7, 1).ok());
  Contribute(0, 1, {2, 2, 2});
  const Effects closed = Contribute(1, 1, {2, 2, 2});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, PeerId::Worker(7));
}

// In a new epoch workers contribute again, and ask again.
TEST_F(ShardPullTest, ContributionToAClosedRoundAsksForNothing) {
  CloseRound(0);
  ASSERT_TRUE(Pull(0, 0).ok());
  job_ = EpochAfter(*job_);
  Outbox out;
  shard_.OnEpoch(job_, out);
  Carry(out);
  EXPECT_THAT(Contribute(0, 0, {2, 2, 2}).sent, IsEmpty());
  const auto pulled = Pull(0, 0);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_THAT(Values(pulled->effects, 0), ElementsAre(-1, 0, 1));
}

class ShardMeanPullTest : public ShardPullTest {
 protected:
  ShardMeanPullTest() : ShardPullTest(OptimizerPlace::kWorker) {}
};

TEST_F(ShardMeanPullTest, MeanIsSentIfWorkersUpdate) {
  for (int64_t round = 0; round < 2; ++round) {
    CloseRound(round);
    const auto pulled = Pull(1, round);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_THAT(Values(pulled->effects, round), ElementsAre(2, 2, 2));
  }
}

}  // namespace
}  // namespace nereus
