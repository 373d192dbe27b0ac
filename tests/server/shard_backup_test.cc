// Tests of a shard on its primary and its backup: both have the same rounds,
// and workers see no round that only one of them has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/shard/shard.h"
#include "tests/server/shard_pair.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<float> Result(const Effects& effects, int64_t round,
                          int layer = 0) {
  return ValuesIn(effects.sent, FrameKind::kResult, layer, 0, round, 2);
}

std::vector<FrameKind> KindsOn(const std::deque<Frame>& wire) {
  std::vector<FrameKind> kinds;
  for (const Frame& frame : wire) kinds.push_back(frame.header.kind);
  return kinds;
}

TEST(ShardBackupTest, InitialValuesAreShownOnceTheBackupHasThem) {
  ShardPair pair;
  EXPECT_THAT(KindsOn(pair.wire()),
              ElementsAre(FrameKind::kHave, FrameKind::kHave));
  EXPECT_THAT(pair.Pull(1, 0, kInitialRound).sent, IsEmpty());
  EXPECT_THAT(pair.Contribute(0, 0, kInitialRound, {5, 6}).sent, IsEmpty());
  // The backup has not said yet that it has nothing.
  EXPECT_THAT(pair.wire(), SizeIs(2));
  EXPECT_THAT(pair.Arrive(2).sent, IsEmpty());
  EXPECT_THAT(KindsOn(pair.wire()), ElementsAre(FrameKind::kAggregate));
  EXPECT_THAT(pair.Arrive(1).sent, IsEmpty());
  EXPECT_THAT(pair.parameters(1), ElementsAre(5, 6));
  const Effects shown = pair.Arrive(1);
  ASSERT_THAT(shown.sent, SizeIs(1));
  EXPECT_EQ(shown.sent[0].to, PeerId::Worker(1));
  EXPECT_THAT(Result(shown, kInitialRound), ElementsAre(5, 6));
}

// So the primary waits for the hop alone, and not for the backup's update.
TEST(ShardBackupTest, BackupSaysThatItHasARoundBeforeItUpdates) {
  ShardPair pair;
  pair.Begin({1, 2});
  pair.Contribute(0, 0, 0, {1, 1});
  pair.Contribute(1, 0, 0, {1, 1});
  ASSERT_THAT(KindsOn(pair.wire()), ElementsAre(FrameKind::kAggregate));
  const Frame mean = pair.wire().front();
  Machine& copy = pair.copy();
  ASSERT_TRUE(copy.OnHeader(PeerId::Shard(0), mean.header).ok());
  Outbox out;
  copy.OnFrame(PeerId::Shard(0), mean, out);
  std::vector<std::string> kinds;
  for (const Action& action : out.actions()) {
    if (std::holds_alternative<SendFrame>(action)) kinds.push_back("send");
    if (std::holds_alternative<UpdateParameters>(action)) {
      kinds.push_back("update");
    }
  }
  EXPECT_THAT(kinds, ElementsAre("send", "update"));
}

class ShardCopyPlaceTest : public testing::TestWithParam<OptimizerPlace> {
 protected:
  // Result of a round: the parameters, or the mean.
  std::vector<float> Either(std::vector<float> parameters,
                            std::vector<float> mean) const {
    return GetParam() == OptimizerPlace::kServer ? parameters : mean;
  }
};

INSTANTIATE_TEST_SUITE_P(Both, ShardCopyPlaceTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST_P(ShardCopyPlaceTest, RoundClosesOnceTheBackupHasIt) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  EXPECT_THAT(pair.Contribute(1, 0, 0, {1, 2}).sent, IsEmpty());
  EXPECT_THAT(pair.wire(), IsEmpty());
  EXPECT_THAT(pair.Contribute(0, 0, 0, {3, 4}).sent, IsEmpty());
  EXPECT_THAT(KindsOn(pair.wire()), ElementsAre(FrameKind::kAggregate));
  EXPECT_EQ(pair.server().closed_round(), kInitialRound);
  EXPECT_THAT(pair.Arrive(1).sent, IsEmpty());
  const Effects closed = pair.Arrive(1);
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, std::nullopt);
  EXPECT_EQ(Result(closed, 0), Either({8, 17}, {2, 3}));
  pair.ExpectEqual();
}

// The last frame of a round's last contribution, again, by the time when it
// comes; and all frames of the two servers.
TEST_P(ShardCopyPlaceTest, RepeatedFramesAreDiscarded) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  pair.Contribute(1, 0, 0, {1, 2});
  const auto last = pair.Contribution(0, 0, 0, {3, 4});
  pair.Send(0, last);
  const auto discarded = [&](const Frame& frame) {
    const auto landing =
        pair.server().OnHeader(frame.header.sender, frame.header);
    return landing.ok() && landing->kind == Landing::Kind::kDiscard;
  };
  EXPECT_TRUE(discarded(last[0]));  // The round is closing.
  const Frame mean = pair.wire().front();
  pair.Arrive(1);
  pair.ExpectDiscarded(mean);
  const Frame have = pair.wire().front();
  pair.Arrive(1);
  pair.ExpectDiscarded(have);
  EXPECT_TRUE(discarded(last[0]));
  pair.ExpectEqual();
}

TEST(ShardBackupTest, StatesAreBitEqualOnBothServers) {
  for (const bool deterministic : {false, true}) {
    JobOptions options = PlainSgd();
    options.deterministic = deterministic;
    options.optimizer.rule = UpdateRule::kAdam;
    options.optimizer.learning_rate = 0.1f;
    ShardPair quiet(options, 3);
    ShardPair swapped(options, 3);
    for (ShardPair* pair : {&quiet, &swapped}) pair->Begin({0.7f, -1.3f});
    for (int64_t round = 0; round < 12; ++round) {
      if (round == 4) swapped.Enter(Holders(1, 0, true));
      if (round == 7) swapped.Enter(Holders(0, 1, true));
      if (round == 9) swapped.Enter(Holders(1, -1, false));
      if (round == 10) swapped.Enter(Holders(1, 0, false));
      swapped.Arrive();
      const float value = 0.1f * static_cast<float>(round - 5);
      const auto expected = quiet.Round(round, {value, 0.3f});
      const auto found = swapped.Round(round, {value, 0.3f});
      EXPECT_EQ(Result(found, round), Result(expected, round)) << round;
      EXPECT_EQ(Result(found, round, 2), Result(expected, round, 2)) << round;
    }
    quiet.ExpectEqual();
    swapped.ExpectEqual();
  }
}

// The copy has the round; the server is gone before it hears so.
TEST_P(ShardCopyPlaceTest, BackupAnswersWorkersThatMissedTheResult) {
  ShardPair pair(PlainSgd(GetParam()), 3);
  pair.Begin({10, 20});
  for (const int worker : {0, 1, 2}) {
    pair.Contribute(worker, 0, 0, {3, 6});
  }
  EXPECT_THAT(pair.Arrive(1).sent, IsEmpty());
  // Worker 2 is gone with the server.
  EXPECT_THAT(pair.Enter(Holders(1, -1, false),
                         [](Job& job) { job.workers.pop_back(); })
                  .sent,
              IsEmpty());
  EXPECT_THAT(pair.wire(), IsEmpty());
  for (const int worker : {1, 0}) {
    const Effects answer = pair.Pull(worker, 0, 0);
    ASSERT_THAT(answer.sent, SizeIs(1));
    EXPECT_EQ(answer.sent[0].to, PeerId::Worker(worker));
    EXPECT_EQ(Result(answer, 0), Either({7, 14}, {3, 6}));
    EXPECT_THAT(pair.Contribute(worker, 0, 0, {50, 60}).sent, IsEmpty());
    EXPECT_THAT(pair.Pull(worker, 0, 0).sent, IsEmpty());
  }
  // The next round, and a round that the primary had not closed, close without
  // the backup.
  pair.Contribute(0, 0, 1, {1, 1});
  EXPECT_EQ(Result(pair.Contribute(1, 0, 1, {3, 3}), 1),
            Either({5, 12}, {2, 2}));
  pair.Contribute(0, 2, 0, {1, 1});
  EXPECT_EQ(Result(pair.Contribute(1, 2, 0, {3, 3}), 0, 2),
            Either({8, 18}, {2, 2}));
}

// The mean is lost on its way, or the answer to it.
TEST_P(ShardCopyPlaceTest, ClosingRoundIsAskedForAgainAndAnsweredOnce) {
  for (const int arrive : {0, 1}) {
    ShardPair pair(PlainSgd(GetParam()), 3);
    pair.Begin({10, 20});
    for (const int worker : {0, 1, 2}) {
      pair.Contribute(worker, 0, 0, {3, 6});
    }
    EXPECT_THAT(pair.Arrive(arrive).sent, IsEmpty());
    pair.Enter(Holders(0, 1, true), [](Job& job) { job.workers.pop_back(); });
    EXPECT_THAT(pair.server().oldest_open_round()->missing_workers, IsEmpty());
    // A worker asks before the backup has it, another one after that.
    EXPECT_THAT(pair.Pull(0, 0, 0).sent, IsEmpty());
    EXPECT_THAT(pair.Contribute(0, 0, 0, {50, 60}).sent, IsEmpty());
    EXPECT_THAT(pair.Pull(0, 0, 0).sent, IsEmpty());
    const Effects closed = pair.Arrive();
    ASSERT_THAT(closed.sent, SizeIs(1));
    EXPECT_EQ(closed.sent[0].to, PeerId::Worker(0));
    const Effects late = pair.Pull(1, 0, 0);
    ASSERT_THAT(late.sent, SizeIs(1));
    for (const Effects& each : {closed, late}) {
      EXPECT_EQ(Result(each, 0), Either({7, 14}, {3, 6}));
    }
    for (const int worker : {0, 1}) {
      EXPECT_THAT(pair.Contribute(worker, 0, 0, {50, 60}).sent, IsEmpty());
      EXPECT_THAT(pair.Pull(worker, 0, 0).sent, IsEmpty());
    }
    pair.ExpectEqual();
  }
}

TEST_P(ShardCopyPlaceTest, ClosingRoundClosesIfTheBackupIsGone) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  EXPECT_THAT(pair.Enter(Holders(0, -1, false)).sent, IsEmpty());
  EXPECT_EQ(Result(pair.Pull(1, 0, 0), 0), Either({7, 14}, {3, 6}));
}

// Twice in a row, no copy has said that it has it.
TEST_P(ShardCopyPlaceTest, ClosingRoundOutlivesSeveralEpochs) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.Enter(Holders(0, 1, true));
  pair.Pull(0, 0, 0);
  pair.Enter(Holders(0, 1, true));
  EXPECT_THAT(pair.Pull(1, 0, 0).sent, IsEmpty());
  const Effects closed = pair.Arrive();
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, PeerId::Worker(1));
  EXPECT_EQ(Result(closed, 0), Either({7, 14}, {3, 6}));
  pair.ExpectEqual();
}

// Workers that join while a round has all its contributions begin with its
// result, in whichever order they ask.
TEST(ShardBackupTest, NewWorkersBeginWithTheResultOfAClosingRound) {
  ShardPair pair;
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.Arrive(1);  // The mean; the copy's answer is lost.
  pair.Enter(Holders(0, 1, true), [](Job& job) {
    job.workers = {{2, 0}, {3, 0}};
  });
  EXPECT_THAT(pair.Pull(2, 0, kInitialRound).sent, IsEmpty());
  const Effects shown = pair.Arrive();
  ASSERT_THAT(shown.sent, SizeIs(1));
  const std::vector<float> closed = {7, 14};
  EXPECT_EQ(FloatsOf(shown.sent[0].frame.payload), closed);
  const Effects later = pair.Pull(3, 0, kInitialRound);
  ASSERT_THAT(later.sent, SizeIs(1));
  EXPECT_EQ(FloatsOf(later.sent[0].frame.payload), closed);
}

// No worker has seen a closing round: if the backup takes over, it is open
// again.
TEST_P(ShardCopyPlaceTest, ClosingRoundIsOpenAgainIfTheBackupTakesOver) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.Enter(Holders(1, 0, true));
  pair.Arrive();
  EXPECT_THAT(pair.server().oldest_open_round()->missing_workers,
              ElementsAre(0, 1));
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {5, 10});
  EXPECT_EQ(Result(pair.Arrive(), 0), Either({5, 10}, {5, 10}));
  pair.ExpectEqual();
}

// The backup had the mean when roles were swapped, and the old primary had not
// closed the round.
TEST_P(ShardCopyPlaceTest, ServerBehindItsBackupCatchesUpWhenRolesSwap) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.Arrive(1);
  pair.Enter(Holders(1, 0, true));
  // Nothing is shown that would be lost with it.
  EXPECT_THAT(pair.Pull(0, 0, 0).sent, IsEmpty());
  EXPECT_FALSE(pair.server().has_current_backup());
  const Effects shown = pair.Arrive();
  ASSERT_THAT(shown.sent, SizeIs(1));
  EXPECT_EQ(Result(shown, 0), Either({7, 14}, {3, 6}));
  pair.ExpectEqual();
}

TEST(ShardBackupTest, PullsWaitUntilTheBackupHasReported) {
  ShardPair pair;
  pair.Begin({10, 20});
  pair.Round(0, {2, 2});
  const std::vector<float> before = pair.parameters(0);
  pair.Enter(Holders(0, 1, true), [](Job& job) {
    job.workers.push_back({2, 1});
    job.history.first_step = 1;
  });
  EXPECT_THAT(pair.Pull(2, 0, 0).sent, IsEmpty());
  EXPECT_THAT(pair.Pull(2, 0, 0).sent, IsEmpty());  // Which is not held twice.
  const Effects shown = pair.Arrive();
  ASSERT_THAT(shown.sent, SizeIs(1));
  EXPECT_EQ(shown.sent[0].to, PeerId::Worker(2));
  EXPECT_EQ(Result(shown, 0), before);
}

TEST_P(ShardCopyPlaceTest, NewBackupGetsChunkAfterChunkWhileOthersGoOn) {
  ShardPair pair(PlainSgd(GetParam()));
  pair.Begin({10, 20});
  pair.Round(0, {2, 2});
  pair.Enter(Holders(0, -1, false));
  pair.Round(1, {2, 2});
  EXPECT_FALSE(pair.server().has_current_backup());
  pair.Enter(Holders(0, 1, false));
  // Before it has said that it has nothing, rounds go on without it.
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 2, {0, 0});
  EXPECT_EQ(pair.server().oldest_open_round()->round, 2);
  EXPECT_THAT(pair.Arrive(2).sent, IsEmpty());
  // Its parameters, and their velocity or the last mean.
  EXPECT_THAT(KindsOn(pair.wire()),
              ElementsAre(FrameKind::kCopy, FrameKind::kCopy));
  const int sent = static_cast<int>(pair.wire().front().header.layer);
  const int other = 2 - sent;
  // A round of the chunk that is on its way waits, that of the other does not.
  pair.Contribute(0, sent, 3 - sent / 2, {1, 1});
  EXPECT_THAT(pair.Contribute(1, sent, 3 - sent / 2, {1, 1}).sent, IsEmpty());
  pair.Contribute(0, other, 3 - other / 2, {1, 1});
  EXPECT_THAT(pair.Contribute(1, other, 3 - other / 2, {1, 1}).sent, SizeIs(1));
  const Effects rest = pair.Arrive();
  ASSERT_THAT(rest.sent, SizeIs(1));
  EXPECT_EQ(rest.sent[0].frame.header.layer, static_cast<uint32_t>(sent));
  EXPECT_TRUE(pair.server().has_current_backup());
  // Also bit-equal: if it takes over, it goes on.
  const std::vector<float> parameters = pair.parameters(0);
  const std::vector<float> others = pair.parameters(0, 2);
  EXPECT_EQ(pair.parameters(1), parameters);
  EXPECT_EQ(pair.parameters(1, 2), others);
  pair.Enter(Holders(1, -1, false));
  EXPECT_THAT(pair.Pull(0, sent, 3 - sent / 2).sent, SizeIs(1));
}

TEST(ShardBackupTest, EpochInTheMiddleOfACopyBeginsItAgain) {
  constexpr int64_t kElements = 2 * kFrameElementsMax + 7;
  JobOptions options = PlainSgd();
  options.optimizer.rule = UpdateRule::kAdam;
  const JobPtr job = TestJob(1, 2, {VectorLayer("large", kElements)}, options);
  ShardPair pair(job);
  pair.Arrive();
  const auto initial = IntegerValues(kElements, 3);
  pair.Contribute(0, 0, kInitialRound, initial);
  pair.Arrive();
  pair.Contribute(0, 0, 0, IntegerValues(kElements, 4));
  pair.Arrive();
  pair.Enter(Holders(0, -1, false));
  pair.Enter(Holders(0, 1, false));
  pair.Arrive(1);
  EXPECT_THAT(pair.wire(), SizeIs(9));  // Three arrays, of three frames each.
  const Frame first = pair.wire().front();
  pair.Arrive(5);
  pair.ExpectDiscarded(first);
  EXPECT_EQ(pair.copy().closed_round(), kInitialRound);
  EXPECT_EQ(pair.copy().stored_bytes(), 0);
  pair.Enter(Holders(0, 1, false));
  EXPECT_THAT(pair.Arrive(1 + 9).sent, IsEmpty());
  EXPECT_EQ(KindsOn(pair.wire()), std::vector<FrameKind>{FrameKind::kHave});
  const Frame have = pair.wire().front();
  pair.Arrive();
  pair.ExpectDiscarded(have);
  EXPECT_TRUE(pair.server().has_current_backup());
  EXPECT_EQ(pair.parameters(0), pair.parameters(1));
  // Its state came too.
  pair.Enter(Holders(1, 0, true));
  pair.Arrive();
  pair.Contribute(0, 0, 1, IntegerValues(kElements, 5));
  pair.Arrive();
  EXPECT_EQ(pair.parameters(0), pair.parameters(1));
  EXPECT_EQ(pair.server().closed_round(), 1);
}

// Layers that workers own are held as of the base round, and never change.
TEST(ShardBackupTest, LayersByFactorsAreCopiedAsTheyAre) {
  const JobPtr job = TestJob(2, 2, {FactorLayer("fc", 2, 3, true, 4)},
                             PlainSgd(), Scheme::kFactor);
  ASSERT_EQ(job->routes[0].scheme, Scheme::kFactor);
  ShardPair pair(job);
  pair.Arrive();
  const auto initial = IntegerValues(8, 1);
  pair.Contribute(0, 0, kInitialRound, initial);
  pair.Arrive();
  EXPECT_EQ(pair.parameters(1), initial);
  EXPECT_TRUE(pair.server().has_current_backup());
  EXPECT_EQ(pair.server().closed_round(), std::nullopt);
  Frame mean = pair.Between(FrameKind::kAggregate, 0, 0);
  mean.header.payload_bytes = 32;
  pair.ExpectRefused(mean, "workers exchange this layer without the servers");
  pair.Enter(Holders(0, -1, false));
  pair.Enter(Holders(0, 1, false));
  pair.Arrive();
  EXPECT_EQ(pair.parameters(1), initial);
  EXPECT_TRUE(pair.server().has_current_backup());
  pair.Enter(Holders(1, 0, true));
  pair.Arrive();
  const Effects pulled = pair.Pull(1, 0, kInitialRound);
  EXPECT_EQ(ValuesIn(pulled.sent, FrameKind::kResult, 0, 0, kInitialRound, 8),
            initial);
}

// The backup still has the mean of the last round when it becomes the primary.
TEST(ShardBackupTest, NoMeanIsCopiedOfALayerThatHasLeftTheServers) {
  ShardPair pair(PlainSgd(OptimizerPlace::kWorker));
  pair.Begin({10, 20});
  pair.Round(0, {1, 2});
  pair.Enter(Holders(0, 1, true), [](Job& job) {
    for (Route& route : job.routes) route.scheme = Scheme::kRing;
  });
  pair.Arrive();
  pair.Enter(Holders(1, -1, false));
  pair.Enter(Holders(1, 0, false));
  for (; !pair.wire().empty(); pair.Arrive(1)) {
    EXPECT_EQ(pair.wire().front().header.part, 0);
  }
  pair.ExpectEqual();
}

// A job that goes on from a checkpoint, with the optimizer on the workers.
class RestoredCopyTest : public testing::Test {
 protected:
  RestoredCopyTest()
      : pair_(EpochAfter(*TestJob(2, 2, PairLayers(), Options()), [](Job& job) {
          job.history.base_round = 6;
          job.history.first_step = 7;
          job.state_arrays = 2;
          for (EpochWorker& each : job.workers) each.first_step = 7;
        })) {}
  static JobOptions Options() { return PlainSgd(OptimizerPlace::kWorker); }
  // Values in the files of a server.
  void Fill(size_t load) {
    float next = 1;
    for (const ChunkValues& values : pair_.loads()[load].values) {
      for (const Buffer* buffer : {&values.parameters, &values.state}) {
        for (int64_t i = 0; i < buffer->float_count(); ++i) {
          const_cast<Buffer*>(buffer)->floats()[i] = next++;
        }
      }
    }
  }
  // Frames to worker 1 of layer 0: parameters and two arrays.
  std::vector<float> Pulled() {
    const Effects pulled = pair_.Pull(1, 0, 6);
    std::vector<float> all;
    for (const uint8_t part : {0, 1, 2}) {
      for (const float value :
           ValuesIn(pulled.sent, FrameKind::kResult, 0, 0, 6, 2, part)) {
        all.push_back(value);
      }
    }
    return all;
  }
  ShardPair pair_;
};

TEST_F(RestoredCopyTest, BothLoadTheCheckpoint) {
  ASSERT_THAT(pair_.loads(), SizeIs(2));
  Fill(0);
  Fill(1);
  pair_.Arrive();
  EXPECT_TRUE(pair_.server().has_current_backup());
  EXPECT_THAT(Pulled(), ElementsAre(1, 2, 3, 4, 5, 6));
  pair_.Enter(Holders(1, -1, false));
  EXPECT_THAT(Pulled(), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(RestoredCopyTest, NewBackupIsSentBaseAndMean) {
  ASSERT_THAT(pair_.loads(), SizeIs(2));
  Fill(0);
  pair_.Arrive();
  for (const bool averaged : {false, true}) {
    if (averaged) pair_.Round(7, {2, 2});
    pair_.Enter(Holders(0, -1, false));
    pair_.Enter(Holders(0, 1, false));
    ASSERT_THAT(pair_.loads(), SizeIs(2));
    pair_.Arrive(2);
    EXPECT_THAT(pair_.wire(), SizeIs(averaged ? 4 : 3));
    pair_.Arrive();
    ASSERT_TRUE(pair_.server().has_current_backup());
    EXPECT_EQ(pair_.copy().closed_round(), averaged ? 7 : 6);
  }
  pair_.Enter(Holders(1, -1, false));
  EXPECT_THAT(Result(pair_.Pull(0, 0, 7), 7), ElementsAre(3, 3));
  pair_.Enter(Holders(1, -1, false), [](Job& job) {
    job.workers = {{0, 7}, {1, 7}};
  });
  EXPECT_THAT(pair_.Contribute(0, 0, 8, {9, 9}).sent, IsEmpty());
}

TEST(ShardBackupTest, BackupSavesNothingUntilItIsPrimary) {
  JobOptions options = PlainSgd();
  options.checkpoint_every = 1;
  ShardPair pair(options);
  pair.Begin({10, 20});
  pair.Round(0, {2, 4});
  ASSERT_THAT(pair.saves(), SizeIs(1));
  EXPECT_EQ(pair.saves()[0].shard, 0);
  EXPECT_EQ(pair.saves()[0].round, 0);
  EXPECT_THAT(FloatsOf(pair.saves()[0].values[0].parameters),
              ElementsAre(7, 14));
  // Half of round 1 is closed when the primary dies.
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 1, {1, 1});
  pair.Arrive();
  pair.Enter(Holders(1, -1, false));
  for (const int layer : {0, 2}) {
    for (const int worker : {0, 1}) pair.Contribute(worker, layer, 1, {1, 1});
  }
  EXPECT_THAT(pair.saves(), SizeIs(1));
  pair.Round(2, {2, 2});
  ASSERT_THAT(pair.saves(), SizeIs(2));
  EXPECT_EQ(pair.saves()[1].round, 2);
  EXPECT_THAT(FloatsOf(pair.saves()[1].values[0].parameters),
              ElementsAre(3, 10));
}

TEST(ShardBackupTest, ValuesToBeWrittenAreNotTouched) {
  JobOptions options = PlainSgd();
  options.checkpoint_every = 1;
  ShardPair pair(options);
  pair.Begin({10, 20});
  pair.Round(0, {2, 4});
  pair.Round(1, {2, 4});
  ASSERT_THAT(pair.saves(), SizeIs(2));
  EXPECT_THAT(FloatsOf(pair.saves()[0].values[0].parameters),
              ElementsAre(7, 14));
}

TEST(ShardBackupTest, BackupTakesNoFramesOfWorkers) {
  ShardPair pair;
  const auto frames = pair.Contribution(0, 0, kInitialRound, {1, 2});
  const absl::Status status =
      pair.copy().OnHeader(PeerId::Worker(0), frames[0].header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("this server is the shard's backup"));
}

TEST(ShardBackupTest, FramesOfOtherServersAreRefused) {
  const JobPtr job = TestJob(2, 3, PairLayers(), PlainSgd());
  Shard server(job, 0, PeerId::Shard(0));
  Shard copy(job, 0, PeerId::Shard(1));
  FrameHeader header =
      MakeHeader(*job, PeerId::Shard(2), FrameKind::kHave, 0, 0, kInitialRound);
  for (const Shard* shard : {&server, &copy}) {
    const absl::Status status = shard->OnHeader(header.sender, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(
            "server 0 is the primary of shard 0 and server 1 its backup"));
  }
  // Without a copy, no server has to.
  const JobPtr alone = EpochAfter(
      *job, [](Job& next) { next.shard_servers[0] = Holders(0, -1, false); });
  Outbox out;
  server.OnEpoch(alone, out);
  header = MakeHeader(*alone, PeerId::Shard(1), FrameKind::kHave, 0, 0,
                      kInitialRound);
  EXPECT_THAT(
      std::string(server.OnHeader(header.sender, header).status().message()),
      HasSubstr("the sender must be a worker"));
}

TEST(ShardBackupTest, PrimaryRefusesFramesThatNoBackupSends) {
  ShardPair pair;
  pair.Begin({10, 20});
  Frame have = pair.Between(FrameKind::kHave, 1, 0);
  pair.ExpectDiscarded(have);
  have.header.offset = kFrameElementsMax;
  pair.ExpectRefused(have, "without payload");
  have = pair.Between(FrameKind::kHave, 1, 0);
  have.header.part = 1;
  pair.ExpectRefused(have, "without payload");
  for (const FrameKind kind : {FrameKind::kAggregate, FrameKind::kCopy}) {
    pair.ExpectRefused(pair.Between(kind, 1, 0),
                       "a backup must send frames of kind have");
  }
  for (const int64_t round : {int64_t{1}, int64_t{2}, kStepMax}) {
    pair.ExpectRefused(pair.Between(FrameKind::kHave, 1, round),
                       "round 0 is open");
  }
}

// No backup can have a mean that was never sent.
TEST(ShardBackupTest, BackupCannotHaveAMeanThatItWasNotSent) {
  ShardPair pair;
  pair.Begin({10, 20});
  pair.Enter(Holders(0, 1, true));
  for (const int worker : {0, 1}) pair.Contribute(worker, 0, 0, {3, 6});
  pair.ExpectRefused(pair.Between(FrameKind::kHave, 1, 1), "round 0 is open");
}

TEST(ShardBackupTest, BackupRefusesFramesThatNoPrimarySends) {
  ShardPair pair;
  pair.Begin({10, 20});
  pair.ExpectRefused(pair.Between(FrameKind::kHave, 0, 0),
                     "backups take means, verdicts and copies");
  pair.ExpectRefused(pair.Between(FrameKind::kAggregate, 0, 1),
                     "the backup follows round 0");
  pair.ExpectDiscarded(pair.Between(FrameKind::kAggregate, 0, kInitialRound));
  Frame mean = pair.Between(FrameKind::kAggregate, 0, 0);
  mean.header.part = 1;
  pair.ExpectRefused(mean, "the backup follows round 0");
  mean.header.part = 0;
  mean.header.payload_bytes = 4;
  pair.ExpectRefused(mean, "payload");

  pair.ExpectDiscarded(pair.Between(FrameKind::kCopy, 0, kInitialRound));
  Frame copy = pair.Between(FrameKind::kCopy, 0, 0);
  copy.header.part = 2;
  pair.ExpectRefused(copy, "a copy as of this round has 2 parts");
  copy.header.part = 255;
  pair.ExpectRefused(copy, "a copy as of this round has 2 parts");
  pair.ExpectRefused(pair.Between(FrameKind::kCopy, 0, kStepMax + 1),
                     "rounds are in [-1, ");
}

TEST(ShardBackupTest, CopyUnderWayIsOfASingleRound) {
  constexpr int64_t kElements = kFrameElementsMax + 1;
  ShardPair pair(TestJob(1, 2, {VectorLayer("large", kElements)}, PlainSgd()));
  pair.Arrive();
  pair.Contribute(0, 0, kInitialRound, IntegerValues(kElements, 1));
  pair.Arrive();
  pair.Enter(Holders(0, -1, false));
  pair.Enter(Holders(0, 1, false));
  pair.Arrive(1);
  ASSERT_THAT(pair.wire(), SizeIs(4));
  pair.Arrive(1);
  Frame other = pair.wire().front();
  other.header.round = 0;
  pair.ExpectRefused(other, "receives a copy of 2 parts as of round -1");
  other = pair.wire().front();
  other.header.part = 2;
  pair.ExpectRefused(other, "a copy of 2 parts");
  other = pair.wire().front();
  other.header.kind = FrameKind::kAggregate;
  pair.ExpectRefused(other, "and receives a copy now");
}

TEST(ShardBackupTest, RoundThatWaitsForTheBackupSaysSo) {
  ShardPair pair;
  pair.Begin({10, 20});
  EXPECT_EQ(pair.server().oldest_open_round()->missing_backup, -1);
  for (const int layer : {2, 0}) {
    for (const int worker : {0, 1}) pair.Contribute(worker, layer, 0, {3, 6});
  }
  EXPECT_THAT(pair.server().oldest_open_round()->missing_workers, IsEmpty());
  EXPECT_EQ(pair.server().oldest_open_round()->missing_backup, 1);
}

// In simulations there may be no values.
TEST(ShardBackupTest, SizesAreCopiedWithoutValues) {
  JobOptions options = PlainSgd();
  options.optimizer.rule = UpdateRule::kAdam;
  JobPtr job = TestJob(1, 2, {VectorLayer("large", 70000)}, options);
  const auto ends = [&] {
    return std::vector<PeerId>{PeerId::Shard(0), PeerId::Shard(1)};
  };
  Shard server(job, 0, ends()[0]);
  std::optional<Shard> copy(std::in_place, job, 0, ends()[1]);
  const std::function<void(Outbox&)> carry = [&](Outbox& out) {
    std::deque<Effects::Sent> sent;
    for (auto& each : Carry(out).sent) sent.push_back(std::move(each));
    while (!sent.empty()) {
      const Effects::Sent each = sent.front();
      sent.pop_front();
      EXPECT_EQ(each.frame.payload.data(), nullptr);
      if (!each.to.has_value() || each.to->role == Role::kWorker) continue;
      Shard& to = each.to->rank == 0 ? server : *copy;
      const PeerId from = each.frame.header.sender;
      ASSERT_TRUE(to.OnHeader(from, each.frame.header).ok());
      Outbox next;
      to.OnFrame(from, each.frame, next);
      for (auto& more : Carry(next).sent) sent.push_back(std::move(more));
    }
  };
  const auto contribute = [&](int64_t round) {
    CutIntoFrames(*job,
                  MakeHeader(*job, PeerId::Worker(0), FrameKind::kContribution,
                             0, 0, round),
                  Buffer::SizeOnly(70000 * 4), [&](const Frame& frame) {
                    Outbox out;
                    server.OnFrame(PeerId::Worker(0), frame, out);
                    carry(out);
                  });
  };
  Outbox out;
  server.Start(out);
  copy->Start(out);
  carry(out);
  contribute(kInitialRound);
  contribute(0);
  EXPECT_EQ(server.closed_round(), 0);
  EXPECT_EQ(copy->stored_bytes(), 3 * 70000 * 4);
  job = EpochAfter(
      *job, [](Job& next) { next.shard_servers[0] = Holders(0, 1, false); });
  copy.emplace(job, 0, ends()[1]);
  server.OnEpoch(job, out);
  copy->Start(out);
  carry(out);
  contribute(1);
  EXPECT_EQ(copy->closed_round(), 1);
  EXPECT_EQ(copy->stored_bytes(), 3 * 70000 * 4);
}

}  // namespace
}  // namespace nereus
