// A layer that goes through the servers: its messages, refused rounds, and what
// is asked for and sent again in a new epoch.

#include "worker/machine/server_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/compute/factor_gradient.h"
#include "tests/testing/machine_harness.h"
#include "tests/worker/worker_under_test.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Elements of three chunks on two shards; the last chunk has two frames.
constexpr int64_t kElements = 2 * kChunkElementsMax + kFrameElementsMax + 1;

JobOptions OptimizerAt(OptimizerPlace place) {
  JobOptions options;
  options.optimizer_place = place;
  return options;
}

JobPtr LargeJob(OptimizerPlace place = OptimizerPlace::kServer) {
  return TestJob(2, 2, {VectorLayer("large", kElements)}, OptimizerAt(place));
}

JobPtr SmallJob(OptimizerPlace place = OptimizerPlace::kServer,
                int workers = 2) {
  return TestJob(workers, 1, {VectorLayer("scale", 3)}, OptimizerAt(place));
}

// Returns the chunks of the frames of `kind` in `effects`, each once,
// ascending.
std::vector<int> ChunksIn(const Effects& effects, FrameKind kind) {
  std::vector<int> chunks;
  for (const auto& sent : effects.sent) {
    const auto chunk = static_cast<int>(sent.frame.header.chunk);
    if (sent.frame.header.kind != kind) continue;
    if (chunks.empty() || chunks.back() != chunk) chunks.push_back(chunk);
  }
  return chunks;
}

TEST(ServerExchangeTest,
     WorkerZeroSendsTheInitialParametersAndAllWorkersRequestThem) {
  for (const int rank : {0, 1}) {
    WorkerUnderTest worker(SmallJob(), rank);
    EXPECT_EQ(worker.syncer().done_round(), kInitialRound - 1);
    const Effects effects = worker.Start();
    ASSERT_EQ(effects.sent.size(), rank == 0 ? 2u : 1u);
    for (const auto& sent : effects.sent) {
      EXPECT_EQ(sent.to, PeerId::Shard(0));
      EXPECT_EQ(sent.frame.header.sender, PeerId::Worker(rank));
      EXPECT_EQ(sent.frame.header.round, kInitialRound);
      EXPECT_TRUE(
          CheckFrame(*worker.job(), PeerId::Worker(rank), sent.frame.header)
              .ok());
    }
    if (rank == 0) {
      EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kContribution, 0, 0,
                         kInitialRound, 3),
                IntegerValues(3, 1000));
    }
    const FrameHeader& pull = effects.sent.back().frame.header;
    EXPECT_EQ(pull.kind, FrameKind::kPull);
    EXPECT_EQ(pull.payload_bytes, 0u);
    EXPECT_THAT(effects.done, IsEmpty());

    const Effects received = worker.ReceiveResults(kInitialRound, {7, 8, 9});
    ASSERT_EQ(received.done.size(), 1u);
    EXPECT_EQ(received.done[0].layer, 0);
    EXPECT_EQ(received.done[0].round, kInitialRound);
    EXPECT_EQ(worker.syncer().done_round(), kInitialRound);
    EXPECT_THAT(FloatsOf(worker.parameters()), ElementsAre(7, 8, 9));
  }
}

TEST(ServerExchangeTest, EveryChunkGoesToItsShard) {
  WorkerUnderTest worker(LargeJob(), 1);
  const Effects started = worker.Start();
  EXPECT_EQ(started.sent.size(), 3u);
  worker.ReceiveResults(kInitialRound, IntegerValues(kElements, 1));
  const auto gradient = IntegerValues(kElements, 2);
  const Effects effects = worker.Push(0, FloatBuffer(gradient));
  EXPECT_EQ(effects.sent.size(), 18u);  // Two chunks of 8 frames, one of 2.
  for (const Chunk& chunk : worker.job()->placement.layer_chunks(0)) {
    for (const auto& sent : effects.sent) {
      if (sent.frame.header.chunk != static_cast<uint32_t>(chunk.index)) {
        continue;
      }
      EXPECT_EQ(sent.to, PeerId::Shard(chunk.shard));
    }
    const auto begin = gradient.begin() + chunk.offset;
    EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kContribution, 0, chunk.index,
                       0, chunk.length),
              std::vector<float>(begin, begin + chunk.length));
  }
  const Effects received =
      worker.ReceiveResults(0, IntegerValues(kElements, 3));
  EXPECT_EQ(received.done.size(), 1u);
  EXPECT_EQ(FloatsOf(worker.parameters()), IntegerValues(kElements, 3));
}

TEST(ServerExchangeTest, TheGradientIsSentFromTheCallersMemory) {
  WorkerUnderTest worker(SmallJob(), 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  const Buffer gradient = FloatBuffer({1, 2, 3});
  Effects effects = worker.Push(0, gradient);
  ASSERT_EQ(effects.sent.size(), 1u);
  EXPECT_EQ(effects.sent[0].frame.payload.data(), gradient.data());
  effects.sent.clear();
  // The machine keeps it, to send it again in the next epoch.
  EXPECT_FALSE(gradient.unique());
  worker.ReceiveResults(0, {4, 5, 6});
  EXPECT_TRUE(gradient.unique());
  EXPECT_THAT(FloatsOf(gradient), ElementsAre(1, 2, 3));
  EXPECT_THAT(FloatsOf(worker.parameters()), ElementsAre(4, 5, 6));
}

TEST(ServerExchangeTest, TheCallersOptimizerGetsTheMeanOverTheGradient) {
  WorkerUnderTest worker(SmallJob(OptimizerPlace::kWorker), 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {7, 8, 9});
  const Buffer gradient = FloatBuffer({1, 2, 3});
  worker.Push(0, gradient);
  // The machine keeps it until the mean is in place.
  EXPECT_FALSE(gradient.unique());
  EXPECT_EQ(worker.ReceiveResults(0, {4, 5, 6}).done.size(), 1u);
  EXPECT_THAT(FloatsOf(gradient), ElementsAre(4, 5, 6));
  EXPECT_TRUE(gradient.unique());
  EXPECT_THAT(FloatsOf(worker.parameters()), ElementsAre(7, 8, 9));
}

TEST(ServerExchangeTest, RoundsArePushedOneAfterTheOther) {
  WorkerUnderTest worker(SmallJob(), 0);
  const auto refused = [&](int64_t round) {
    Outbox out;
    const absl::Status status =
        worker.machine().OnPush(0, round, FloatBuffer({1, 1, 1}), out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << round;
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer scale"));
    EXPECT_THAT(Carry(out).sent, IsEmpty());
  };
  refused(0);  // The initial round is not done yet.
  worker.Start();
  refused(0);
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  for (const int64_t round : {-2, -1, 1, 2}) refused(round);
  worker.Push(0, FloatBuffer({1, 1, 1}));
  for (const int64_t round : {0, 1}) refused(round);
  worker.ReceiveResults(0, {1, 1, 1});
  for (const int64_t round : {0, 2}) refused(round);
  worker.Push(1, FloatBuffer({1, 1, 1}));
}

class PlacesTest : public testing::TestWithParam<OptimizerPlace> {};

INSTANTIATE_TEST_SUITE_P(All, PlacesTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

// The caller gives factors for a layer that goes through the servers.
TEST_P(PlacesTest, TheProductOfTheFactorsIsSent) {
  for (const bool bias : {false, true}) {
    for (const bool room : {false, true}) {
      const JobPtr job = TestJob(2, 1, {FactorLayer("fc", 3, 2, bias, 4)},
                                 OptimizerAt(GetParam()));
      WorkerUnderTest worker(job, 1);
      worker.Start();
      const int64_t elements = job->layers[0].parameters;
      worker.ReceiveResults(kInitialRound, IntegerValues(elements, 1));
      for (int64_t round = 0; round < 2; ++round) {
        const auto output_gradient = IntegerValues(12, round);
        const auto input = IntegerValues(8, round + 5);
        std::vector<float> product(elements);
        FactorGradient(4, 3, 2, bias, 1.0f, output_gradient.data(),
                       input.data(), product.data());
        FactorBuffers factors{FloatBuffer(output_gradient), FloatBuffer(input),
                              Buffer()};
        if (room) factors.gradient = Buffer::AllocateZeroed(elements * 4);
        const Effects effects = worker.PushFactors(round, factors);
        EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kContribution, 0, 0, round,
                           elements),
                  product);
        const auto result = IntegerValues(elements, 50 + round);
        EXPECT_EQ(worker.ReceiveResults(round, result).done.size(), 1u);
        if (GetParam() == OptimizerPlace::kServer) {
          EXPECT_EQ(FloatsOf(worker.parameters()), result);
        } else {
          EXPECT_EQ(FloatsOf(worker.parameters()), IntegerValues(elements, 1));
          if (room) {
            EXPECT_EQ(FloatsOf(factors.gradient), result);
          }
        }
      }
    }
  }
}

TEST_P(PlacesTest, OnlyChunksWithoutAResultAreContributedAgain) {
  WorkerUnderTest worker(LargeJob(GetParam()), 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, IntegerValues(kElements, 0));
  const auto gradient = IntegerValues(kElements, 1);
  worker.Push(0, FloatBuffer(gradient));
  const auto result = IntegerValues(kElements, 2);
  worker.ReceiveChunk(1, 0, result);
  // A chunk of two frames has got one.
  DeliverAll(worker.machine(), worker.ShardOf(2),
             {worker.ResultFrames(2, 0, result)[1]});

  const Effects again = worker.Enter(EpochAfter(*worker.job()));
  EXPECT_THAT(ChunksIn(again, FrameKind::kContribution), ElementsAre(0, 2));
  // The shards may have closed the round, and the results are lost.
  EXPECT_THAT(ChunksIn(again, FrameKind::kPull), ElementsAre(0, 2));
  for (const auto& sent : again.sent) {
    const FrameHeader& header = sent.frame.header;
    EXPECT_EQ(sent.to, worker.ShardOf(header.chunk));
    EXPECT_EQ(header.epoch, worker.job()->epoch);
    EXPECT_EQ(header.round, 0);
  }
  const Chunk first = worker.job()->placement.layer_chunks(0)[0];
  EXPECT_EQ(
      ValuesIn(again.sent, FrameKind::kContribution, 0, 0, 0, first.length),
      std::vector<float>(gradient.begin() + first.offset,
                         gradient.begin() + first.offset + first.length));
  EXPECT_THAT(again.done, IsEmpty());

  // Frames that have come stay, and the rest completes the round.
  worker.ReceiveChunk(0, 0, result);
  EXPECT_EQ(worker.syncer().Missing(),
            PeerName(worker.ShardOf(2)) + " (chunk 2)");
  EXPECT_EQ(DeliverAll(worker.machine(), worker.ShardOf(2),
                       {worker.ResultFrames(2, 0, result)[0]})
                .done.size(),
            1u);
  if (GetParam() == OptimizerPlace::kServer) {
    EXPECT_EQ(FloatsOf(worker.parameters()), result);
  }
  // A round that is done is not contributed again.
  EXPECT_THAT(worker.Enter(EpochAfter(*worker.job())).sent, IsEmpty());
}

TEST_P(PlacesTest, AFrozenWorkerStillTakesResults) {
  WorkerUnderTest worker(SmallJob(GetParam()), 0);
  worker.Start();
  worker.ReceiveResults(kInitialRound, {0, 0, 0});
  worker.Push(0, FloatBuffer({1, 2, 3}));
  worker.machine().Freeze();
  EXPECT_EQ(worker.ReceiveResults(0, {7, 7, 7}).done.size(), 1u);
  EXPECT_THAT(worker.Enter(EpochAfter(*worker.job())).sent, IsEmpty());
}

TEST_P(PlacesTest, MissingInitialValuesAreAskedForAgain) {
  for (const int rank : {0, 1}) {
    WorkerUnderTest worker(LargeJob(GetParam()), rank);
    worker.Start();
    const auto initial = IntegerValues(kElements, 5);
    worker.ReceiveChunk(1, kInitialRound, initial);
    const Effects again = worker.Enter(EpochAfter(*worker.job()));
    EXPECT_THAT(ChunksIn(again, FrameKind::kPull), ElementsAre(0, 2));
    // The first worker also sends them again.
    const std::vector<int> given = ChunksIn(again, FrameKind::kContribution);
    EXPECT_EQ(given, rank == 0 ? (std::vector<int>{0, 2}) : std::vector<int>{});
    worker.ReceiveChunk(0, kInitialRound, initial);
    EXPECT_EQ(worker.ReceiveChunk(2, kInitialRound, initial).done.size(), 1u);
    EXPECT_EQ(FloatsOf(worker.parameters()), initial);
  }
}

TEST_P(PlacesTest, IfTheFirstWorkerDiesTheNextGivesTheInitialValues) {
  WorkerUnderTest worker(SmallJob(GetParam(), 3), 1);
  EXPECT_THAT(ChunksIn(worker.Start(), FrameKind::kContribution), IsEmpty());
  const Effects first = worker.Enter(EpochAfter(*worker.job(), [](Job& job) {
    job.workers = {{1, 0}, {2, 0}};
  }));
  EXPECT_EQ(
      ValuesIn(first.sent, FrameKind::kContribution, 0, 0, kInitialRound, 3),
      IntegerValues(3, 1001));
  EXPECT_THAT(ChunksIn(first, FrameKind::kPull), ElementsAre(0));
}

// Frames of a contribution to a round that was closed may still be on their way
// when the next round's gradient is made.
TEST(ServerExchangeTest, FramesSentAgainKeepTheProductOfTheirFactors) {
  // 300 x 300 values: two frames.
  const JobPtr job = TestJob(2, 1, {FactorLayer("fc", 300, 300, false, 1)}, {});
  WorkerUnderTest worker(job, 1);
  worker.Start();
  worker.ReceiveResults(kInitialRound, IntegerValues(90000, 0));
  const auto factors = [](float value) {
    return FactorBuffers{FloatBuffer(std::vector<float>(300, value)),
                         FloatBuffer(std::vector<float>(300, 1.0f)), Buffer()};
  };
  worker.PushFactors(0, factors(2));
  const Effects again = worker.Enter(EpochAfter(*job));
  ASSERT_EQ(again.sent.size(), 3u);  // A question and two frames.
  EXPECT_EQ(worker.ReceiveResults(0, IntegerValues(90000, 1)).done.size(), 1u);
  worker.PushFactors(1, factors(9));
  EXPECT_EQ(ValuesIn(again.sent, FrameKind::kContribution, 0, 0, 0, 90000),
            std::vector<float>(90000, 2.0f));
}

}  // namespace
}  // namespace nereus
