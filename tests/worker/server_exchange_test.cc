#include "worker/machine/server_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/compute/factor_gradient.h"
#include "tests/testing/machine_harness.h"
#include "worker/machine/worker_machine.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JobOptions OptimizerAt(OptimizerPlace place) {
  JobOptions options;
  options.optimizer_place = place;
  return options;
}

// Worker `rank` of two, with one layer and its parameters.
struct OneLayerWorker {
  OneLayerWorker(JobPtr made, int rank)
      : job(std::move(made)),
        rank(rank),
        parameters(FloatBuffer(IntegerValues(job->layers[0].parameters, 0))),
        machine(job, rank, {{parameters, Buffer()}}) {}

  Effects Start() {
    Outbox out;
    machine.Start(out);
    return Carry(out);
  }
  // Delivers the shards' result for the whole layer.
  Effects Receive(int64_t round, const std::vector<float>& values) {
    Effects all;
    for (const Chunk& chunk : job->placement.layer_chunks(0)) {
      const PeerId shard = PeerId::Shard(chunk.shard);
      const auto begin = values.begin() + chunk.offset;
      Effects effects =
          DeliverAll(machine, shard,
                     FramesOf(*job, shard, FrameKind::kResult, 0, chunk.index,
                              round, {begin, begin + chunk.length}));
      for (auto& sent : effects.sent) all.sent.push_back(sent);
      for (const LayerDone& done : effects.done) all.done.push_back(done);
    }
    return all;
  }
  absl::Status Push(int64_t round, Buffer gradient,
                    Effects* effects = nullptr) {
    Outbox out;
    const absl::Status status =
        machine.OnPush(0, round, std::move(gradient), out);
    Effects carried = Carry(out);
    if (effects != nullptr) *effects = std::move(carried);
    return status;
  }

  const JobPtr job;
  const int rank;
  const Buffer parameters;
  WorkerMachine machine;
};

JobPtr ThreeFloats(OptimizerPlace place = OptimizerPlace::kServer) {
  return TestJob(2, 1, {VectorLayer("scale", 3)}, OptimizerAt(place));
}

TEST(ServerExchangeTest,
     WorkerZeroSendsTheInitialParametersAndAllWorkersRequestThem) {
  for (const int rank : {0, 1}) {
    OneLayerWorker worker(ThreeFloats(), rank);
    EXPECT_EQ(worker.machine.syncer(0).done_round(), kInitialRound - 1);
    const Effects effects = worker.Start();
    ASSERT_EQ(effects.sent.size(), rank == 0 ? 2u : 1u);
    for (const auto& sent : effects.sent) {
      EXPECT_EQ(sent.to, PeerId::Shard(0));
      EXPECT_EQ(sent.frame.header.sender, PeerId::Worker(rank));
      EXPECT_EQ(sent.frame.header.round, kInitialRound);
      EXPECT_TRUE(
          CheckFrame(*worker.job, PeerId::Worker(rank), sent.frame.header)
              .ok());
    }
    if (rank == 0) {
      EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kContribution, 0, 0,
                         kInitialRound, 3),
                IntegerValues(3, 0));
    }
    const FrameHeader& pull = effects.sent.back().frame.header;
    EXPECT_EQ(pull.kind, FrameKind::kPull);
    EXPECT_EQ(pull.payload_bytes, 0u);
    EXPECT_THAT(effects.done, IsEmpty());

    const Effects received = worker.Receive(kInitialRound, {7, 8, 9});
    ASSERT_EQ(received.done.size(), 1u);
    EXPECT_EQ(received.done[0].layer, 0);
    EXPECT_EQ(received.done[0].round, kInitialRound);
    EXPECT_EQ(worker.machine.syncer(0).done_round(), kInitialRound);
    EXPECT_THAT(FloatsOf(worker.parameters), ElementsAre(7, 8, 9));
  }
}

TEST(ServerExchangeTest, EveryChunkGoesToItsShard) {
  constexpr int64_t kElements = kChunkElementsMax + 65537;
  OneLayerWorker worker(TestJob(2, 2, {VectorLayer("large", kElements)}), 1);
  const Effects started = worker.Start();
  EXPECT_EQ(started.sent.size(), 2u);
  worker.Receive(kInitialRound, IntegerValues(kElements, 1));
  const auto gradient = IntegerValues(kElements, 2);
  Effects effects;
  ASSERT_TRUE(worker.Push(0, FloatBuffer(gradient), &effects).ok());
  EXPECT_EQ(effects.sent.size(), 10u);
  for (const Chunk& chunk : worker.job->placement.layer_chunks(0)) {
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
  const Effects received = worker.Receive(0, IntegerValues(kElements, 3));
  EXPECT_EQ(received.done.size(), 1u);
  EXPECT_EQ(FloatsOf(worker.parameters), IntegerValues(kElements, 3));
}

TEST(ServerExchangeTest, TheGradientIsSentFromTheCallersMemory) {
  OneLayerWorker worker(ThreeFloats(), 0);
  worker.Start();
  worker.Receive(kInitialRound, {0, 0, 0});
  const Buffer gradient = FloatBuffer({1, 2, 3});
  Effects effects;
  ASSERT_TRUE(worker.Push(0, gradient, &effects).ok());
  ASSERT_EQ(effects.sent.size(), 1u);
  EXPECT_EQ(effects.sent[0].frame.payload.data(), gradient.data());
  effects.sent.clear();
  // The machine keeps it, to send it again in the next epoch.
  EXPECT_FALSE(gradient.unique());
  worker.Receive(0, {4, 5, 6});
  EXPECT_TRUE(gradient.unique());
  EXPECT_THAT(FloatsOf(gradient), ElementsAre(1, 2, 3));
  EXPECT_THAT(FloatsOf(worker.parameters), ElementsAre(4, 5, 6));
}

TEST(ServerExchangeTest, TheCallersOptimizerGetsTheMeanOverTheGradient) {
  OneLayerWorker worker(ThreeFloats(OptimizerPlace::kWorker), 1);
  worker.Start();
  worker.Receive(kInitialRound, {7, 8, 9});
  const Buffer gradient = FloatBuffer({1, 2, 3});
  ASSERT_TRUE(worker.Push(0, gradient).ok());
  EXPECT_FALSE(
      gradient.unique());  // The machine keeps it until the mean is in place.
  EXPECT_EQ(worker.Receive(0, {4, 5, 6}).done.size(), 1u);
  EXPECT_THAT(FloatsOf(gradient), ElementsAre(4, 5, 6));
  EXPECT_TRUE(gradient.unique());
  EXPECT_THAT(FloatsOf(worker.parameters), ElementsAre(7, 8, 9));
}

TEST(ServerExchangeTest, RoundsArePushedOneAfterTheOther) {
  OneLayerWorker worker(ThreeFloats(), 0);
  const auto refused = [&](int64_t round) {
    Effects effects;
    const absl::Status status =
        worker.Push(round, FloatBuffer({1, 1, 1}), &effects);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << round;
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer scale"));
    EXPECT_THAT(effects.sent, IsEmpty());
  };
  refused(0);  // The initial round is not done yet.
  worker.Start();
  refused(0);
  worker.Receive(kInitialRound, {0, 0, 0});
  for (const int64_t round : {-2, -1, 1, 2}) refused(round);
  ASSERT_TRUE(worker.Push(0, FloatBuffer({1, 1, 1})).ok());
  for (const int64_t round : {0, 1}) refused(round);
  worker.Receive(0, {1, 1, 1});
  for (const int64_t round : {0, 2}) refused(round);
  EXPECT_TRUE(worker.Push(1, FloatBuffer({1, 1, 1})).ok());
}

TEST(ServerExchangeTest, MissingNamesTheShardAndTheChunk) {
  OneLayerWorker worker(ThreeFloats(), 0);
  worker.Start();
  EXPECT_EQ(worker.machine.syncer(0).Missing(), "shard 0 (chunk 0)");
  worker.Receive(kInitialRound, {0, 0, 0});
  EXPECT_EQ(worker.machine.syncer(0).Missing(), "");
}

class ServerExchangeFactorsTest
    : public testing::TestWithParam<OptimizerPlace> {};

// The caller gives factors for a layer that goes through the servers.
TEST_P(ServerExchangeFactorsTest, TheProductOfTheFactorsIsSent) {
  for (const bool bias : {false, true}) {
    for (const bool room : {false, true}) {
      const JobPtr job = TestJob(2, 1, {FactorLayer("fc", 3, 2, bias, 4)},
                                 OptimizerAt(GetParam()));
      OneLayerWorker worker(job, 1);
      worker.Start();
      const int64_t elements = job->layers[0].parameters;
      worker.Receive(kInitialRound, IntegerValues(elements, 1));
      for (int64_t round = 0; round < 2; ++round) {
        const auto output_gradient = IntegerValues(12, round);
        const auto input = IntegerValues(8, round + 5);
        std::vector<float> product(elements);
        FactorGradient(4, 3, 2, bias, 1.0f, output_gradient.data(),
                       input.data(), product.data());
        FactorBuffers factors{FloatBuffer(output_gradient), FloatBuffer(input),
                              Buffer()};
        if (room) factors.gradient = Buffer::AllocateZeroed(elements * 4);
        Outbox out;
        ASSERT_TRUE(worker.machine.OnPushFactors(0, round, factors, out).ok());
        const Effects effects = Carry(out);
        EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kContribution, 0, 0, round,
                           elements),
                  product);
        const auto result = IntegerValues(elements, 50 + round);
        EXPECT_EQ(worker.Receive(round, result).done.size(), 1u);
        if (GetParam() == OptimizerPlace::kServer) {
          EXPECT_EQ(FloatsOf(worker.parameters), result);
        } else {
          EXPECT_EQ(FloatsOf(worker.parameters), IntegerValues(elements, 1));
          if (room) {
            EXPECT_EQ(FloatsOf(factors.gradient), result);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, ServerExchangeFactorsTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

}  // namespace
}  // namespace nereus
