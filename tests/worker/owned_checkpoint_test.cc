// Worker-owned layers in a checkpoint: the first worker sends them to the
// shards as of the checkpoint's round.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kElements = 6;

// Options of an exact update: v = v / 2 + mean gradient, parameters -= v.
JobOptions EveryRound(OptimizerPlace place) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.5f;
  options.optimizer_place = place;
  options.checkpoint_every = 1;
  return options;
}

std::vector<Effects::Sent> OwnedIn(const Effects& effects) {
  std::vector<Effects::Sent> owned;
  for (const auto& sent : effects.sent) {
    if (sent.frame.header.kind == FrameKind::kOwned) owned.push_back(sent);
  }
  return owned;
}

std::vector<float> PartIn(const std::vector<Effects::Sent>& sent, int64_t round,
                          uint8_t part, int64_t elements) {
  return ValuesIn(sent, FrameKind::kOwned, 0, 0, round, elements, part);
}

// Worker with one layer, 2 x 3, that goes by factors of one row.
class FactorWorker {
 public:
  explicit FactorWorker(JobPtr job, int rank = 0)
      : worker_(std::move(job), rank) {}

  // Starts with zeros, so that every product adds up exactly.
  void Start() {
    worker_.Start();
    worker_.ReceiveResults(worker_.job()->history.base_round,
                           std::vector<float>(kElements, 0.0f));
  }
  // Does round `round`. All elements of both workers' gradients are `value`.
  Effects Round(int64_t round, float value) {
    Effects effects = worker_.PushFactors(
        round, {FloatBuffer({value, value}), FloatBuffer({1, 1, 1}), Buffer()});
    const int other = worker_.rank() == 0 ? 1 : 0;
    const PeerId peer = PeerId::Worker(other);
    const int position = worker_.job()->PositionOf(other);
    for (const auto& [matrix, values] :
         std::vector<std::pair<uint8_t, std::vector<float>>>{
             {kOutputGradientMatrix, {value, value}},
             {kInputMatrix, {1, 1, 1}}}) {
      const Effects received =
          DeliverAll(worker_.machine(), peer,
                     FramesOf(*worker_.job(), peer, FrameKind::kFactors, 0,
                              position, round, values, matrix));
      effects.sent.insert(effects.sent.end(), received.sent.begin(),
                          received.sent.end());
      effects.done.insert(effects.done.end(), received.done.begin(),
                          received.done.end());
    }
    EXPECT_THAT(effects.done, SizeIs(1)) << "round " << round;
    return effects;
  }
  WorkerUnderTest& worker() { return worker_; }

 private:
  WorkerUnderTest worker_;
};

JobPtr FactorJob(OptimizerPlace place = OptimizerPlace::kServer) {
  return TestJob(2, 1, {FactorLayer("fc", 2, 3, false, 1)}, EveryRound(place),
                 Scheme::kFactor);
}

std::vector<float> All(float value) {
  return std::vector<float>(kElements, value);
}

TEST(OwnedCheckpointTest, TheFirstWorkerSendsTheLayerAndItsStateAfterTheRound) {
  FactorWorker first(FactorJob());
  first.Start();
  const auto sent = OwnedIn(first.Round(0, 4));
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].to, PeerId::Shard(0));
  EXPECT_EQ(PartIn(sent, 0, 0, kElements), All(-4));
  EXPECT_EQ(PartIn(sent, 0, 1, kElements), All(4));
}

TEST(OwnedCheckpointTest, OtherWorkersSendNothing) {
  FactorWorker second(FactorJob(), 1);
  second.Start();
  EXPECT_THAT(OwnedIn(second.Round(0, 4)), IsEmpty());
}

TEST(OwnedCheckpointTest, TheNextWorkerSendsWhenTheFirstHasLeft) {
  FactorWorker second(FactorJob(), 1);
  second.Start();
  second.worker().Enter(EpochAfter(*second.worker().job(), [](Job& job) {
    job.workers = {{1, 0}};
  }));
  const Effects alone = second.worker().PushFactors(
      0, {FloatBuffer({4, 4}), FloatBuffer({1, 1, 1}), Buffer()});
  EXPECT_THAT(OwnedIn(alone), SizeIs(2));
}

TEST(OwnedCheckpointTest, TheValuesSentDoNotChangeWithTheNextRound) {
  FactorWorker first(FactorJob());
  first.Start();
  const auto sent = OwnedIn(first.Round(0, 4));
  first.Round(1, 8);
  EXPECT_EQ(FloatsOf(first.worker().parameters()), All(-4 - (2 + 8)));
  EXPECT_EQ(PartIn(sent, 0, 0, kElements), All(-4));
  EXPECT_EQ(PartIn(sent, 0, 1, kElements), All(4));
}

// The caller's optimizer runs between the round and the next push.
TEST(OwnedCheckpointTest, LayersThatTheCallerUpdatesAreSentAtTheNextPush) {
  FactorWorker first(FactorJob(OptimizerPlace::kWorker));
  first.Start();
  EXPECT_THAT(OwnedIn(first.Round(0, 4)), IsEmpty());
  const Buffer& parameters = first.worker().parameters();
  std::fill_n(parameters.floats(), kElements, 42.0f);
  const auto sent = OwnedIn(first.Round(1, 4));
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(PartIn(sent, 0, 0, kElements), All(42));
}

// There is no next push after the last step.
TEST(OwnedCheckpointTest, LayersThatTheCallerUpdatesAreSentWhenItLeaves) {
  FactorWorker first(FactorJob(OptimizerPlace::kWorker));
  first.Start();
  first.Round(0, 4);
  std::fill_n(first.worker().parameters().floats(), kElements, 42.0f);
  Outbox out;
  first.worker().machine().OnLeave(out);
  EXPECT_EQ(PartIn(OwnedIn(Carry(out)), 0, 0, kElements), All(42));
  const Effects entered =
      first.worker().Enter(EpochAfter(*first.worker().job()));
  EXPECT_EQ(PartIn(OwnedIn(entered), 0, 0, kElements), All(42));
}

TEST(OwnedCheckpointTest, ANewEpochSendsTheLayerAgain) {
  FactorWorker first(FactorJob());
  first.Start();
  first.Round(0, 4);
  const auto enter = [&] {
    return OwnedIn(first.worker().Enter(EpochAfter(*first.worker().job())));
  };
  const auto sent = enter();
  EXPECT_EQ(PartIn(sent, 0, 0, kElements), All(-4));
  EXPECT_EQ(PartIn(sent, 0, 1, kElements), All(4));
  // Round 1 is open, and round 0 is sent again all the same.
  first.worker().PushFactors(
      1, {FloatBuffer({8, 8}), FloatBuffer({1, 1, 1}), Buffer()});
  EXPECT_EQ(PartIn(enter(), 0, 0, kElements), All(-4));
}

TEST(OwnedCheckpointTest, OnlyRoundsOfCheckpointsAreSent) {
  JobOptions options = EveryRound(OptimizerPlace::kServer);
  options.checkpoint_every = 3;
  JobPtr job = TestJob(2, 1, {FactorLayer("fc", 2, 3, false, 1)}, options,
                       Scheme::kFactor);
  job = EpochAfter(*job, [](Job& made) { made.checkpoint_round = 3; });
  FactorWorker first(job);
  first.Start();
  std::vector<int64_t> rounds;
  for (int64_t round = 0; round < 7; ++round) {
    if (!OwnedIn(first.Round(round, 1)).empty()) rounds.push_back(round);
  }
  EXPECT_THAT(rounds, ElementsAre(2, 3, 5));
}

TEST(OwnedCheckpointTest, ALayerThatTheShardsUpdateIsNotSent) {
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", kElements)},
                             EveryRound(OptimizerPlace::kServer));
  WorkerUnderTest worker(job, 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, All(0));
  EXPECT_THAT(OwnedIn(worker.Push(0, FloatBuffer(All(1)))), IsEmpty());
  EXPECT_THAT(OwnedIn(worker.ReceiveResults(0, All(2))), IsEmpty());
  EXPECT_THAT(OwnedIn(worker.Push(1, FloatBuffer(All(1)))), IsEmpty());
}

// Worker on which the caller's optimizer runs, with two arrays of state.
class CallersOptimizerTest : public testing::TestWithParam<int64_t> {
 protected:
  CallersOptimizerTest()
      : worker_(TestJob(1, 2, {VectorLayer("scale", GetParam())},
                        EveryRound(OptimizerPlace::kWorker)),
                0, /*state_arrays=*/2) {
    worker_.Start();
    worker_.ReceiveResults(kInitialRound, Values(0));
  }
  static std::vector<float> Values(int64_t salt) {
    return IntegerValues(GetParam(), salt);
  }
  // Updates parameters and state as the caller's optimizer does.
  void Update(int64_t round) {
    const auto fill = [&](float* into, int64_t salt) {
      const std::vector<float> values = Values(salt);
      absl::c_copy(values, into);
    };
    fill(worker_.parameters().floats(), round * 10);
    fill(worker_.state().floats(), round * 10 + 1);
    fill(worker_.state().floats() + GetParam(), round * 10 + 2);
  }
  Effects Push(int64_t round) {
    return worker_.Push(round, FloatBuffer(Values(7)));
  }
  void ExpectSent(const std::vector<Effects::Sent>& sent, int64_t round) {
    for (const int part : {0, 1, 2}) {
      std::vector<float> found;
      for (const Chunk& chunk : worker_.job()->placement.layer_chunks(0)) {
        const auto values = ValuesIn(SentTo(sent, PeerId::Shard(chunk.shard)),
                                     FrameKind::kOwned, 0, chunk.index, round,
                                     chunk.length, static_cast<uint8_t>(part));
        found.insert(found.end(), values.begin(), values.end());
      }
      EXPECT_EQ(found, Values(round * 10 + part)) << "part " << part;
    }
  }
  WorkerUnderTest worker_;
};

TEST_P(CallersOptimizerTest, EveryLayerIsSentWhenTheNextStepIsPushed) {
  // The initial values belong to no checkpoint.
  EXPECT_THAT(OwnedIn(Push(0)), IsEmpty());
  EXPECT_THAT(OwnedIn(worker_.ReceiveResults(0, Values(1))), IsEmpty());
  Update(0);
  const auto sent = OwnedIn(Push(1));
  worker_.ReceiveResults(1, Values(1));
  Update(1);
  ExpectSent(sent, 0);
  ExpectSent(OwnedIn(Push(2)), 1);
}

TEST_P(CallersOptimizerTest, FetchedValuesAreNotSent) {
  const JobPtr job = EpochAfter(*worker_.job(), [](Job& restored) {
    restored.workers = {{0, 5}};
    restored.history.first_step = 5;
    restored.history.donor = 0;
  });
  WorkerUnderTest joined(job, 0, /*state_arrays=*/2);
  joined.Start();
  // Round 4 is a checkpoint. The worker that gave the values has sent them.
  for (const int part : {0, 1, 2}) {
    for (const Chunk& chunk : job->placement.layer_chunks(0)) {
      DeliverAll(joined.machine(), PeerId::Worker(0),
                 FramesOf(*job, PeerId::Worker(0), FrameKind::kResult, 0,
                          chunk.index, 4, IntegerValues(chunk.length, part),
                          static_cast<uint8_t>(part)));
    }
  }
  ASSERT_FALSE(joined.syncer().fetching());
  EXPECT_THAT(OwnedIn(joined.Push(5, FloatBuffer(Values(1)))), IsEmpty());
  joined.ReceiveResults(5, Values(1));
  EXPECT_THAT(OwnedIn(joined.Push(6, FloatBuffer(Values(1)))),
              testing::Not(IsEmpty()));
}

// A frozen worker sends nothing in an epoch that is about to end.
TEST_P(CallersOptimizerTest, AFrozenWorkerSendsNothing) {
  Push(0);
  worker_.ReceiveResults(0, Values(1));
  Update(0);
  worker_.machine().Freeze();
  EXPECT_THAT(Push(1).sent, IsEmpty());
}

TEST_P(CallersOptimizerTest, APushWhileFrozenIsSentInTheNextEpoch) {
  Push(0);
  worker_.ReceiveResults(0, Values(1));
  Update(0);
  worker_.machine().Freeze();
  Push(1);
  const Effects effects = worker_.Enter(EpochAfter(*worker_.job()));
  ExpectSent(OwnedIn(effects), 0);
  worker_.ReceiveResults(1, Values(1));
  Update(1);
  ExpectSent(OwnedIn(Push(2)), 1);
}

// Frames of an epoch that is over are dropped, wherever they are under way.
TEST_P(CallersOptimizerTest, ANewEpochSendsEveryLayerAgain) {
  Push(0);
  worker_.ReceiveResults(0, Values(1));
  Update(0);
  Push(1);
  ExpectSent(OwnedIn(worker_.Enter(EpochAfter(*worker_.job()))), 0);
}

// The caller may be writing the parameters.
TEST_P(CallersOptimizerTest, NothingIsSentBetweenARoundAndTheNextPush) {
  Push(0);
  worker_.ReceiveResults(0, Values(1));
  EXPECT_THAT(OwnedIn(worker_.Enter(EpochAfter(*worker_.job()))), IsEmpty());
  Update(0);
  ExpectSent(OwnedIn(Push(1)), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, CallersOptimizerTest,
                         testing::Values(3, kFrameElementsMax + 1,
                                         kChunkElementsMax + 5));

}  // namespace
}  // namespace nereus
