#include "server/shard/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr PeerId kWorker0 = {Role::kWorker, 0};
constexpr PeerId kWorker1 = {Role::kWorker, 1};

// An update subtracts the mean gradient.
JobOptions PlainSgd() {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
  options.optimizer.momentum = 0.0f;
  return options;
}

std::vector<Frame> Contribution(const Job& job, int worker, int layer,
                                int64_t chunk, int64_t round,
                                const std::vector<float>& values) {
  return FramesOf(job, PeerId::Worker(worker), FrameKind::kContribution, layer,
                  chunk, round, values);
}

Frame PullOf(const Job& job, int worker, int layer, int64_t chunk) {
  return PullFrame(job, PeerId::Worker(worker), FrameKind::kPull, layer, chunk,
                   kInitialRound);
}

// Delivers one worker's contribution to the only chunk of most tests.
Effects Contribute(Shard& shard, const Job& job, int worker, int64_t round,
                   const std::vector<float>& values) {
  return DeliverAll(shard, PeerId::Worker(worker),
                    Contribution(job, worker, 0, 0, round, values));
}

// Layer 0 on one shard, with its initial parameters.
struct RunningShard {
  explicit RunningShard(const std::vector<float>& initial,
                        JobOptions options = PlainSgd(), int workers = 2)
      : job(TestJob(workers, 1, {VectorLayer("scale", std::ssize(initial))},
                    options)),
        shard(job, 0) {
    Contribute(shard, *job, 0, kInitialRound, initial);
  }
  JobPtr job;
  Shard shard;
};

TEST(ShardTest, LifeOfAChunk) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 3)}, PlainSgd());
  Shard shard(job, 0);
  EXPECT_EQ(shard.chunk_count(), 1);

  // Round -1 has worker 0's values as they are; no worker has asked for them
  // yet.
  Effects effects = Contribute(shard, *job, 0, kInitialRound, {1, 2, 3});
  EXPECT_THAT(effects.sent, IsEmpty());
  EXPECT_THAT(FloatsOf(shard.chunk(0, 0).held().parameters),
              ElementsAre(1, 2, 3));

  // Both workers pull.
  for (const int worker : {1, 0}) {
    const auto pulled =
        Deliver(shard, PeerId::Worker(worker), PullOf(*job, worker, 0, 0));
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    const auto& sent = pulled->effects.sent;
    ASSERT_EQ(sent.size(), 1u);
    EXPECT_EQ(sent[0].to, PeerId::Worker(worker));
    EXPECT_EQ(sent[0].frame.header.sender, PeerId::Shard(0));
    EXPECT_THAT(ValuesIn(sent, FrameKind::kResult, 0, 0, kInitialRound, 3),
                ElementsAre(1, 2, 3));
  }

  // Rounds 0 and 1: parameters minus the mean gradient, to all workers.
  EXPECT_THAT(Contribute(shard, *job, 1, 0, {2, 4, 6}).sent, IsEmpty());
  effects = Contribute(shard, *job, 0, 0, {0, 0, 2});
  ASSERT_EQ(effects.sent.size(), 1u);
  EXPECT_EQ(effects.sent[0].to, std::nullopt);
  EXPECT_THAT(ValuesIn(effects.sent, FrameKind::kResult, 0, 0, 0, 3),
              ElementsAre(0, 0, -1));
  EXPECT_THAT(Contribute(shard, *job, 0, 1, {1, 1, 1}).sent, IsEmpty());
  effects = Contribute(shard, *job, 1, 1, {1, 1, 1});
  EXPECT_THAT(ValuesIn(effects.sent, FrameKind::kResult, 0, 0, 1, 3),
              ElementsAre(-1, -1, -2));
  EXPECT_THAT(FloatsOf(shard.chunk(0, 0).held().parameters),
              ElementsAre(-1, -1, -2));
}

TEST(ShardTest, ResultHeaderFitsTheJobAndItsChunk) {
  RunningShard running({1, 2});
  Contribute(running.shard, *running.job, 0, 0, {1, 1});
  const Effects effects = Contribute(running.shard, *running.job, 1, 0, {1, 1});
  ASSERT_EQ(effects.sent.size(), 1u);
  const FrameHeader& header = effects.sent[0].frame.header;
  EXPECT_TRUE(CheckFrame(*running.job, PeerId::Shard(0), header).ok());
  EXPECT_TRUE(FrameIndex(header, 2).ok());
}

TEST(ShardTest, RoundClosesWhenTheLastMissingFrameArrives) {
  constexpr int64_t kElements = 65537;
  const std::vector<float> initial = IntegerValues(kElements, 0);
  RunningShard running(initial);
  const auto first = IntegerValues(kElements, 2);
  const auto second = IntegerValues(kElements, 4);
  const auto frames0 = Contribution(*running.job, 0, 0, 0, 0, first);
  const auto frames1 = Contribution(*running.job, 1, 0, 0, 0, second);
  ASSERT_EQ(frames0.size(), 2u);
  EXPECT_THAT(DeliverAll(running.shard, kWorker0, {frames0[1]}).sent,
              IsEmpty());
  EXPECT_THAT(
      DeliverAll(running.shard, kWorker1, {frames1[0], frames1[1]}).sent,
      IsEmpty());
  const Effects effects = DeliverAll(running.shard, kWorker0, {frames0[0]});
  EXPECT_EQ(effects.sent.size(), 2u);
  std::vector<float> expected(kElements);
  for (int64_t i = 0; i < kElements; ++i) {
    expected[i] = initial[i] - 0.5f * (first[i] + second[i]);
  }
  EXPECT_EQ(ValuesIn(effects.sent, FrameKind::kResult, 0, 0, 0, kElements),
            expected);
}

TEST(ShardTest, EarlyPullsAreAnsweredWithTheInitialParameters) {
  const JobPtr job = TestJob(3, 1, {VectorLayer("scale", 65537)}, PlainSgd());
  Shard shard(job, 0);
  for (const int worker : {2, 0}) {
    const auto pulled =
        Deliver(shard, PeerId::Worker(worker), PullOf(*job, worker, 0, 0));
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_THAT(pulled->effects.sent, IsEmpty());
  }
  const auto initial = IntegerValues(65537, 3);
  const auto frames = Contribution(*job, 0, 0, 0, kInitialRound, initial);
  EXPECT_THAT(DeliverAll(shard, kWorker0, {frames[1]}).sent, IsEmpty());
  const Effects effects = DeliverAll(shard, kWorker0, {frames[0]});
  for (const int worker : {0, 2}) {
    std::vector<Effects::Sent> mine;
    for (const auto& sent : effects.sent) {
      if (sent.to == PeerId::Worker(worker)) mine.push_back(sent);
    }
    EXPECT_EQ(mine.size(), 2u);
    EXPECT_EQ(ValuesIn(mine, FrameKind::kResult, 0, 0, kInitialRound, 65537),
              initial);
  }
  EXPECT_EQ(effects.sent.size(), 4u);
  // Answered once: the first round sends its own result only.
  std::vector<float> zeros(65537, 0.0f);
  for (int worker = 0; worker < 3; ++worker) {
    const Effects round = Contribute(shard, *job, worker, 0, zeros);
    EXPECT_EQ(round.sent.size(), worker == 2 ? 2u : 0u);
  }
}

TEST(ShardTest, WorkerIsSentTheParametersOnceHoweverOftenItAsks) {
  RunningShard running({10, 20});
  const Frame pull = PullOf(*running.job, 1, 0, 0);
  EXPECT_EQ(DeliverAll(running.shard, kWorker1, {pull}).sent.size(), 1u);
  EXPECT_THAT(DeliverAll(running.shard, kWorker1, {pull, pull}).sent,
              IsEmpty());
}

TEST(ShardTest, SentFramesKeepTheirValuesInLaterRounds) {
  RunningShard running({10, 20});
  const Effects pulled =
      DeliverAll(running.shard, kWorker1, {PullOf(*running.job, 1, 0, 0)});
  Contribute(running.shard, *running.job, 0, 0, {2, 2});
  const Effects held = Contribute(running.shard, *running.job, 1, 0, {2, 2});
  for (int64_t round = 1; round < 4; ++round) {
    Contribute(running.shard, *running.job, 0, round, {2, 2});
    Contribute(running.shard, *running.job, 1, round, {2, 2});
    EXPECT_THAT(ValuesIn(held.sent, FrameKind::kResult, 0, 0, 0, 2),
                ElementsAre(8, 18));
    EXPECT_THAT(
        ValuesIn(pulled.sent, FrameKind::kResult, 0, 0, kInitialRound, 2),
        ElementsAre(10, 20));
  }
  EXPECT_THAT(FloatsOf(running.shard.chunk(0, 0).held().parameters),
              ElementsAre(2, 12));
}

TEST(ShardTest, ParametersAreUpdatedInPlaceIfNoFrameHoldsThem) {
  RunningShard running({10, 20});
  const uint8_t* const memory =
      running.shard.chunk(0, 0).held().parameters.data();
  for (int64_t round = 0; round < 3; ++round) {
    Contribute(running.shard, *running.job, 1, round, {1, 1});
    Contribute(running.shard, *running.job, 0, round, {1, 1});
    EXPECT_EQ(running.shard.chunk(0, 0).held().parameters.data(), memory);
  }
}

TEST(ShardTest, OptimizerStateIsKeptFromRoundToRound) {
  JobOptions options = PlainSgd();
  options.optimizer.momentum = 0.5f;
  RunningShard running({0}, options, /*workers=*/1);
  Contribute(running.shard, *running.job, 0, 0, {8});
  Contribute(running.shard, *running.job, 0, 1, {0});
  Contribute(running.shard, *running.job, 0, 2, {0});
  // Velocities 8, 4 and 2.
  EXPECT_THAT(FloatsOf(running.shard.chunk(0, 0).held().parameters),
              ElementsAre(-14));
}

TEST(ShardTest, AdamCountsItsSteps) {
  JobOptions options;
  options.optimizer.rule = UpdateRule::kAdam;
  RunningShard running({1}, options, /*workers=*/1);
  float parameter = 1.0f;
  float state[2] = {0.0f, 0.0f};
  for (int64_t round = 0; round < 5; ++round) {
    const auto gradient = static_cast<float>(round - 1);
    Contribute(running.shard, *running.job, 0, round, {gradient});
    ApplyOptimizer(options.optimizer, round, 1, 1.0f, &gradient, &parameter,
                   state, &parameter);
    EXPECT_THAT(FloatsOf(running.shard.chunk(0, 0).held().parameters),
                ElementsAre(parameter));
  }
}

TEST(ShardTest, ResultsAreMeansIfWorkersUpdate) {
  JobOptions options = PlainSgd();
  options.optimizer_place = OptimizerPlace::kWorker;
  RunningShard running({5, 5}, options, /*workers=*/4);
  Effects held;
  for (int64_t round = 0; round < 3; ++round) {
    Effects effects;
    for (const int worker : {3, 1, 0, 2}) {
      const auto value = static_cast<float>(worker + round);
      effects =
          Contribute(running.shard, *running.job, worker, round, {value, 4});
    }
    ASSERT_EQ(effects.sent.size(), 1u);
    EXPECT_EQ(effects.sent[0].to, std::nullopt);
    EXPECT_THAT(ValuesIn(effects.sent, FrameKind::kResult, 0, 0, round, 2),
                ElementsAre(1.5f + static_cast<float>(round), 4));
    if (round == 0) held = effects;
  }
  // The first mean is still what it was, and the parameters are the initial
  // ones.
  EXPECT_THAT(ValuesIn(held.sent, FrameKind::kResult, 0, 0, 0, 2),
              ElementsAre(1.5f, 4));
  EXPECT_THAT(FloatsOf(running.shard.chunk(0, 0).held().parameters),
              ElementsAre(5, 5));
}

TEST(ShardTest, DeterministicSumsAreByRank) {
  JobOptions options = PlainSgd();
  options.optimizer_place = OptimizerPlace::kWorker;
  options.deterministic = true;
  RunningShard running({0}, options, /*workers=*/4);
  // In float32, the sum in the order of ranks, 2^24 + 1 + 1 - 2^24, is 0. In
  // the order of arrival the sum would be 2, and the mean 0.5.
  Effects effects;
  Contribute(running.shard, *running.job, 0, 0, {0x1.0p24f});
  Contribute(running.shard, *running.job, 3, 0, {-0x1.0p24f});
  Contribute(running.shard, *running.job, 2, 0, {1});
  effects = Contribute(running.shard, *running.job, 1, 0, {1});
  EXPECT_THAT(ValuesIn(effects.sent, FrameKind::kResult, 0, 0, 0, 1),
              ElementsAre(0));
}

TEST(ShardTest, StoredBytesAreParametersAndState) {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    JobOptions options;
    options.optimizer.rule = rule;
    const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 10)}, options);
    Shard shard(job, 0);
    EXPECT_EQ(shard.stored_bytes(), 0);
    Contribute(shard, *job, 0, kInitialRound, IntegerValues(10, 0));
    EXPECT_EQ(shard.stored_bytes(), 40 + 40 * OptimizerStateCount(rule));
  }
  JobOptions options;
  options.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 10)}, options);
  Shard shard(job, 0);
  Contribute(shard, *job, 0, kInitialRound, IntegerValues(10, 0));
  EXPECT_EQ(shard.stored_bytes(), 40);
}

TEST(ShardTest, ShardOnlyStoresAndSendsLayersByFactors) {
  const JobPtr job = TestJob(2, 1, {FactorLayer("fc", 2, 2, true, 4)},
                             PlainSgd(), Scheme::kFactor);
  Shard shard(job, 0);
  const auto initial = IntegerValues(6, 0);
  Contribute(shard, *job, 0, kInitialRound, initial);
  EXPECT_EQ(shard.stored_bytes(), 24);  // No state: it never updates.
  const Effects pulled = DeliverAll(shard, kWorker1, {PullOf(*job, 1, 0, 0)});
  EXPECT_EQ(ValuesIn(pulled.sent, FrameKind::kResult, 0, 0, kInitialRound, 6),
            initial);
  EXPECT_EQ(shard.oldest_open_round(), std::nullopt);
}

TEST(ShardTest, OldestOpenRoundNamesTheMissingWorkers) {
  const JobPtr job = TestJob(
      3, 1, {VectorLayer("first", 4), VectorLayer("second", 4)}, PlainSgd());
  Shard shard(job, 0);
  const std::vector<float> values(4, 1.0f);
  DeliverAll(shard, kWorker0,
             Contribution(*job, 0, 0, 0, kInitialRound, values));
  auto open = shard.oldest_open_round();
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->layer, 1);
  EXPECT_EQ(open->round, kInitialRound);
  EXPECT_THAT(open->missing_workers, ElementsAre(0));

  DeliverAll(shard, kWorker0,
             Contribution(*job, 0, 1, 0, kInitialRound, values));
  DeliverAll(shard, kWorker1, Contribution(*job, 1, 0, 0, 0, values));
  open = shard.oldest_open_round();
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->layer, 0);
  EXPECT_EQ(open->round, 0);
  EXPECT_THAT(open->missing_workers, ElementsAre(0, 2));

  DeliverAll(shard, kWorker0, Contribution(*job, 0, 0, 0, 0, values));
  DeliverAll(shard, PeerId::Worker(2), Contribution(*job, 2, 0, 0, 0, values));
  open = shard.oldest_open_round();
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->layer, 1);
  EXPECT_THAT(open->missing_workers, ElementsAre(0, 1, 2));
}

TEST(ShardTest, ShardWithoutChunksWaitsForNothing) {
  const JobPtr job = TestJob(1, 3, {VectorLayer("scale", 1)});
  const Shard shard(job, 2);
  EXPECT_EQ(shard.chunk_count(), 0);
  EXPECT_EQ(shard.stored_bytes(), 0);
  EXPECT_EQ(shard.oldest_open_round(), std::nullopt);
}

TEST(ShardTest, ChunksOfAllShardsTogetherAreTheModel) {
  const JobPtr job = TestJob(1, 2,
                             {VectorLayer("large", 2 * kChunkElementsMax + 9),
                              VectorLayer("small", 5)},
                             PlainSgd());
  std::deque<Shard> shards;
  for (const int index : {0, 1}) shards.emplace_back(job, index);
  int64_t chunks = 0;
  int64_t bytes = 0;
  for (const Chunk& chunk : job->placement.chunks()) {
    DeliverAll(shards[chunk.shard], kWorker0,
               Contribution(*job, 0, chunk.layer, chunk.index, kInitialRound,
                            IntegerValues(chunk.length, chunk.index)));
    const HeldChunk& held =
        shards[chunk.shard].chunk(chunk.layer, chunk.index).held();
    EXPECT_EQ(FloatsOf(held.parameters),
              IntegerValues(chunk.length, chunk.index));
  }
  for (const Shard& shard : shards) {
    chunks += shard.chunk_count();
    bytes += shard.stored_bytes();
  }
  EXPECT_EQ(chunks, 4);
  EXPECT_EQ(bytes, (2 * kChunkElementsMax + 14) * 8);
}

// Frames may be repeated, for example after a broken connection.
TEST(ShardTest, RepetitionsAreDiscardedAndChangeNothing) {
  RunningShard running(IntegerValues(65537, 0));
  const auto first = IntegerValues(65537, 1);
  const auto second = IntegerValues(65537, 2);
  const auto frames = Contribution(*running.job, 0, 0, 0, 0, first);
  const auto others = Contribution(*running.job, 1, 0, 0, 0, second);
  const auto initial = Contribution(*running.job, 0, 0, 0, kInitialRound,
                                    IntegerValues(65537, 0));
  const auto expect_discarded = [&](PeerId from, const Frame& frame) {
    const auto delivery = Deliver(running.shard, from, frame);
    ASSERT_TRUE(delivery.ok()) << delivery.status();
    EXPECT_EQ(delivery->landing, Landing::Kind::kDiscard);
  };
  std::vector<float> expected = IntegerValues(65537, 0);
  for (int64_t i = 0; i < 65537; ++i) {
    expected[i] -= 0.5f * (first[i] + second[i]);
  }
  expect_discarded(kWorker0, initial[0]);
  DeliverAll(running.shard, kWorker0, {frames[1]});
  expect_discarded(kWorker0, frames[1]);
  DeliverAll(running.shard, kWorker0, {frames[0]});
  expect_discarded(kWorker0, frames[0]);
  DeliverAll(running.shard, kWorker1, others);
  // The round is past.
  expect_discarded(kWorker0, frames[0]);
  expect_discarded(kWorker1, others[1]);
  expect_discarded(kWorker0, initial[1]);
  EXPECT_EQ(FloatsOf(running.shard.chunk(0, 0).held().parameters), expected);
}

// OnHeader changes nothing: announced frames that never arrive don't count.
TEST(ShardTest, AnnouncedFrameWithoutPayloadDoesNotCount) {
  RunningShard running({1});
  const auto frames = Contribution(*running.job, 0, 0, 0, 0, {1});
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto landing = running.shard.OnHeader(kWorker0, frames[0].header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(landing->kind, Landing::Kind::kScratch);
  }
  EXPECT_THAT(running.shard.oldest_open_round()->missing_workers,
              ElementsAre(0, 1));
}

struct RefusalCase {
  const char* name;
  PeerId from;
  std::function<void(FrameHeader&)> spoil;
  const char* message;
};

class ShardRefusalTest : public testing::TestWithParam<RefusalCase> {};

// The shard has chunk 1 of layer `large` and is in round 1. Another shard has
// chunk 0. Layer `fc` goes by factors.
TEST_P(ShardRefusalTest, IsRefusedWithTheReason) {
  const JobPtr job = TestJob(3, 2,
                             {VectorLayer("large", kChunkElementsMax + 5),
                              FactorLayer("fc", 2, 2, false, 3)},
                             PlainSgd(), Scheme::kFactor);
  const auto chunks = job->placement.layer_chunks(0);
  ASSERT_NE(chunks[0].shard, chunks[1].shard);
  Shard shard(job, chunks[1].shard);
  DeliverAll(shard, kWorker0,
             Contribution(*job, 0, 0, 1, kInitialRound, IntegerValues(5, 0)));
  for (int worker = 0; worker < 3; ++worker) {
    DeliverAll(shard, PeerId::Worker(worker),
               Contribution(*job, worker, 0, 1, 0, IntegerValues(5, worker)));
  }
  const int fc_shard = job->placement.layer_chunks(1)[0].shard;
  Shard factor_shard(job, fc_shard);
  DeliverAll(factor_shard, kWorker0,
             Contribution(*job, 0, 1, 0, kInitialRound, IntegerValues(4, 0)));

  FrameHeader header =
      Contribution(*job, 1, 0, 1, 1, IntegerValues(5, 9))[0].header;
  ASSERT_TRUE(shard.OnHeader(kWorker1, header).ok());
  GetParam().spoil(header);
  const Shard& target = header.layer == 1 ? factor_shard : shard;
  const absl::Status status = target.OnHeader(GetParam().from, header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), HasSubstr(DescribeFrame(header)));
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardRefusalTest,
    testing::Values(
        RefusalCase{"Job", kWorker1, [](FrameHeader& h) { h.job = 1; },
                    "job is 1, expected 77"},
        RefusalCase{"Epoch", kWorker1, [](FrameHeader& h) { h.epoch = 2; },
                    "epoch is 2, expected 1"},
        RefusalCase{"Sender", kWorker0, [](FrameHeader&) {},
                    "sender is worker 1, expected worker 0"},
        RefusalCase{"Shard", PeerId::Shard(0),
                    [](FrameHeader& h) { h.sender = PeerId::Shard(0); },
                    "the sender must be a worker"},
        RefusalCase{"Layer", kWorker1, [](FrameHeader& h) { h.layer = 2; },
                    "the model has 2 layers"},
        RefusalCase{"Chunk", kWorker1, [](FrameHeader& h) { h.chunk = 2; },
                    "layer large has 2 chunks"},
        RefusalCase{"OtherShardsChunk", kWorker1,
                    [](FrameHeader& h) { h.chunk = 0; }, "the chunk is shard "},
        RefusalCase{"FutureRound", kWorker1,
                    [](FrameHeader& h) { h.round = 2; }, "round 1 is open"},
        RefusalCase{"RoundBeforeAll", kWorker1,
                    [](FrameHeader& h) { h.round = -2; },
                    "rounds are in [-1, "},
        RefusalCase{"InitialParametersOfAnother", kWorker1,
                    [](FrameHeader& h) { h.round = kInitialRound; },
                    "worker 0 alone sends the initial parameters"},
        RefusalCase{"FactorLayer", kWorker1,
                    [](FrameHeader& h) {
                      h.layer = 1;
                      h.chunk = 0;
                      h.round = 0;
                      h.payload_bytes = 16;
                    },
                    "layer fc is exchanged by workers without the servers"},
        RefusalCase{"Offset", kWorker1, [](FrameHeader& h) { h.offset = 1; },
                    "must be a multiple of 65536 below 5"},
        RefusalCase{"OffsetBehindTheChunk", kWorker1,
                    [](FrameHeader& h) { h.offset = 65536; },
                    "must be a multiple of 65536 below 5"},
        RefusalCase{"TooShort", kWorker1,
                    [](FrameHeader& h) { h.payload_bytes = 16; },
                    "the payload must have 20 bytes"},
        RefusalCase{"TooLong", kWorker1,
                    [](FrameHeader& h) { h.payload_bytes = 24; },
                    "the payload must have 20 bytes"},
        RefusalCase{"WireType", kWorker1,
                    [](FrameHeader& h) { h.wire = WireType::kNone; },
                    "wire type is 0, expected 1"},
        RefusalCase{"PullWithAPayload", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPull;
                      h.wire = WireType::kNone;
                    },
                    "a pull must have no payload, offset 0 and part 0"},
        RefusalCase{"PullWithAnOffset", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPull;
                      h.wire = WireType::kNone;
                      h.payload_bytes = 0;
                      h.offset = 65536;
                    },
                    "a pull must have no payload, offset 0 and part 0"},
        RefusalCase{"PullWithAPart", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPull;
                      h.wire = WireType::kNone;
                      h.payload_bytes = 0;
                      h.part = 1;
                    },
                    "a pull must have no payload, offset 0 and part 0"},
        RefusalCase{"PullOfALaterRound", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPull;
                      h.wire = WireType::kNone;
                      h.payload_bytes = 0;
                      h.round = 2;
                    },
                    "this worker takes part from round 0 on"},
        RefusalCase{"PullRound", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kPullRound;
                      h.wire = WireType::kNone;
                      h.payload_bytes = 0;
                    },
                    "shards take contributions, pulls and owned layers"},
        RefusalCase{"Part", kWorker1, [](FrameHeader& h) { h.part = 1; },
                    "the part must be 0"},
        RefusalCase{"Result", kWorker1,
                    [](FrameHeader& h) { h.kind = FrameKind::kResult; },
                    "shards take contributions, pulls and owned layers"},
        RefusalCase{"Factors", kWorker1,
                    [](FrameHeader& h) { h.kind = FrameKind::kFactors; },
                    "shards take contributions, pulls and owned layers"},
        RefusalCase{"Hello", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kHello;
                      h.wire = WireType::kNone;
                    },
                    "shards take contributions, pulls and owned layers"},
        RefusalCase{"Refusal", kWorker1,
                    [](FrameHeader& h) {
                      h.kind = FrameKind::kRefusal;
                      h.wire = WireType::kNone;
                    },
                    "shards take contributions, pulls and owned layers"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardTest, BeforeTheInitialParametersRound0IsRefused) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 2)}, PlainSgd());
  const Shard shard(job, 0);
  const auto frames = Contribution(*job, 1, 0, 0, 0, {1, 2});
  const absl::Status status =
      shard.OnHeader(kWorker1, frames[0].header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("round -1 is open"));
}

TEST(ShardTest, FramesWithoutMemoryCloseRoundsToo) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 65537)});
  Shard shard(job, 0);
  const auto contribute = [&](int worker, int64_t round) {
    Effects effects;
    CutIntoFrames(*job,
                  MakeHeader(*job, PeerId::Worker(worker),
                             FrameKind::kContribution, 0, 0, round),
                  Buffer::SizeOnly(65537 * 4), [&](const Frame& frame) {
                    Outbox out;
                    const auto landing =
                        shard.OnHeader(PeerId::Worker(worker), frame.header);
                    ASSERT_TRUE(landing.ok()) << landing.status();
                    shard.OnFrame(PeerId::Worker(worker), frame, out);
                    effects = Carry(out);
                  });
    return effects;
  };
  contribute(0, kInitialRound);
  EXPECT_EQ(shard.stored_bytes(), 2 * 65537 * 4);
  for (int64_t round = 0; round < 3; ++round) {
    EXPECT_THAT(contribute(0, round).sent, IsEmpty());
    const Effects effects = contribute(1, round);
    ASSERT_EQ(effects.sent.size(), 2u);
    EXPECT_EQ(effects.sent[1].frame.payload.bytes(), 4);
    EXPECT_EQ(effects.sent[1].frame.payload.data(), nullptr);
  }
}

TEST(ShardTest, RepeatedEarlyPullIsAnsweredOnce) {
  const JobPtr job = TestJob(2, 1, {VectorLayer("scale", 2)});
  Shard shard(job, 0);
  const Frame pull = PullOf(*job, 1, 0, 0);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(Deliver(shard, PeerId::Worker(1), pull).ok());
  }
  const Effects effects =
      DeliverAll(shard, PeerId::Worker(0),
                 FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0,
                          0, kInitialRound, {1, 2}));
  EXPECT_EQ(effects.sent.size(), 1u);
}

TEST(ShardTest, PullGivesTheInitialRoundIfWorkersUpdate) {
  JobOptions options;
  options.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr job = TestJob(1, 1, {VectorLayer("scale", 1)}, options);
  Shard shard(job, 0);
  const PeerId worker = PeerId::Worker(0);
  DeliverAll(shard, worker, Contribution(*job, 0, 0, 0, kInitialRound, {7}));
  DeliverAll(shard, worker, Contribution(*job, 0, 0, 0, 0, {9}));
  const Effects effects = DeliverAll(shard, worker, {PullOf(*job, 0, 0, 0)});
  ASSERT_EQ(effects.sent.size(), 1u);
  // The values are the initial parameters, not the mean of round 0.
  EXPECT_EQ(effects.sent[0].frame.header.round, kInitialRound);
  EXPECT_THAT(
      ValuesIn(effects.sent, FrameKind::kResult, 0, 0, kInitialRound, 1),
      ElementsAre(7));
}

TEST(ShardDeathTest, FrameForAnotherShardsChunkEndsTheProcess) {
  const JobPtr job =
      TestJob(1, 2, {VectorLayer("scale", 1), VectorLayer("bias", 1)});
  const auto chunks = job->placement.chunks();
  const Chunk& chunk = *absl::c_find_if(
      chunks, [](const Chunk& each) { return each.shard == 1; });
  Shard shard(job, 0);
  Outbox out;
  const Frame frame = PullOf(*job, 0, chunk.layer, chunk.index);
  EXPECT_DEATH(shard.OnFrame(kWorker0, frame, out), "at shard 0");
}

}  // namespace
}  // namespace nereus
