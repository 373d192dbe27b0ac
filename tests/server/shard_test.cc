#include "server/shard/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr PeerId kWorker0 = {Role::kWorker, 0};
constexpr PeerId kWorker1 = {Role::kWorker, 1};

TEST(ShardTest, LifeOfAChunk) {
  ShardDriver running(TestJob(2, 1, {VectorLayer("scale", 3)}, PlainSgd()));
  EXPECT_EQ(running.shard().chunk_count(), 1);

  // Round -1 has worker 0's values as they are; no worker has asked for them
  // yet.
  EXPECT_THAT(running.Contribute(0, kInitialRound, {1, 2, 3}).sent, IsEmpty());
  EXPECT_THAT(running.parameters(), ElementsAre(1, 2, 3));
  for (const int worker : {1, 0}) {
    const Effects pulled = running.Pull(worker, kInitialRound);
    ASSERT_THAT(pulled.sent, SizeIs(1));
    EXPECT_EQ(pulled.sent[0].to, PeerId::Worker(worker));
    EXPECT_EQ(pulled.sent[0].frame.header.sender, PeerId::Shard(0));
    EXPECT_THAT(running.Result(pulled, kInitialRound), ElementsAre(1, 2, 3));
  }

  // Rounds 0 and 1: parameters minus the mean gradient, to all workers.
  EXPECT_THAT(running.Contribute(1, 0, {2, 4, 6}).sent, IsEmpty());
  Effects closed = running.Contribute(0, 0, {0, 0, 2});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, std::nullopt);
  EXPECT_THAT(running.Result(closed, 0), ElementsAre(0, 0, -1));
  EXPECT_THAT(running.Contribute(0, 1, {1, 1, 1}).sent, IsEmpty());
  closed = running.Contribute(1, 1, {1, 1, 1});
  EXPECT_THAT(running.Result(closed, 1), ElementsAre(-1, -1, -2));
  EXPECT_THAT(running.parameters(), ElementsAre(-1, -1, -2));
}

TEST(ShardTest, EarlyPullsAreAnsweredOnceWithTheInitialParameters) {
  ShardDriver running(TestJob(3, 1, {VectorLayer("scale", 65537)}, PlainSgd()));
  for (int i = 0; i < 1000; ++i) {
    for (const int worker : {2, 0}) {
      const auto pulled = Deliver(running.shard(), PeerId::Worker(worker),
                                  running.PullOf(worker, kInitialRound));
      ASSERT_TRUE(pulled.ok()) << pulled.status();
      EXPECT_THAT(pulled->effects.sent, IsEmpty());
    }
  }
  const auto initial = IntegerValues(65537, 3);
  const auto frames = running.Contribution(0, kInitialRound, initial);
  EXPECT_THAT(running.Send({frames[1]}).sent, IsEmpty());
  const Effects effects = running.Send({frames[0]});
  for (const int worker : {0, 2}) {
    const auto mine = SentTo(effects.sent, PeerId::Worker(worker));
    EXPECT_THAT(mine, SizeIs(2));
    EXPECT_EQ(ValuesIn(mine, FrameKind::kResult, 0, 0, kInitialRound, 65537),
              initial);
  }
  EXPECT_THAT(effects.sent, SizeIs(4));
  // The first round sends its own result only.
  for (int worker = 0; worker < 3; ++worker) {
    const Effects round =
        running.Contribute(worker, 0, std::vector<float>(65537, 0.0f));
    EXPECT_THAT(round.sent, SizeIs(worker == 2 ? 2 : 0));
  }
}

TEST(ShardTest, WorkerIsSentTheParametersOnceHoweverOftenItAsks) {
  ShardDriver running(/*workers=*/2, {10, 20});
  EXPECT_THAT(running.Pull(1, kInitialRound).sent, SizeIs(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(running.Pull(1, kInitialRound).sent, IsEmpty());
  }
}

TEST(ShardTest, SentFramesKeepTheirValuesInLaterRounds) {
  ShardDriver running(/*workers=*/2, {10, 20});
  const Effects pulled = running.Pull(1, kInitialRound);
  running.Contribute(0, 0, {2, 2});
  const Effects held = running.Contribute(1, 0, {2, 2});
  for (int64_t round = 1; round < 4; ++round) {
    running.Contribute(0, round, {2, 2});
    running.Contribute(1, round, {2, 2});
    EXPECT_THAT(running.Result(held, 0), ElementsAre(8, 18));
    EXPECT_THAT(running.Result(pulled, kInitialRound), ElementsAre(10, 20));
  }
  EXPECT_THAT(running.parameters(), ElementsAre(2, 12));
}

TEST(ShardTest, ParametersAreUpdatedInPlaceIfNoFrameHoldsThem) {
  ShardDriver running(/*workers=*/2, {10, 20});
  const auto memory = [&] {
    return running.shard().chunk(0, 0).held().parameters.data();
  };
  const uint8_t* const before = memory();
  for (int64_t round = 0; round < 3; ++round) {
    running.Contribute(1, round, {1, 1});
    running.Contribute(0, round, {1, 1});
    EXPECT_EQ(memory(), before);
  }
}

TEST(ShardTest, OptimizerStateIsKeptFromRoundToRound) {
  JobOptions options = PlainSgd();
  options.optimizer.momentum = 0.5f;
  ShardDriver running(/*workers=*/1, {0}, options);
  running.Contribute(0, 0, {8});
  running.Contribute(0, 1, {0});
  running.Contribute(0, 2, {0});
  // Velocities 8, 4 and 2.
  EXPECT_THAT(running.parameters(), ElementsAre(-14));
}

TEST(ShardTest, StoredBytesAreParametersAndState) {
  const auto stored = [](const JobOptions& options) {
    ShardDriver running(/*workers=*/1, IntegerValues(10, 0), options);
    return running.shard().stored_bytes();
  };
  JobOptions options;
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    options.optimizer.rule = rule;
    EXPECT_EQ(stored(options), 40 + 40 * OptimizerStateCount(rule));
  }
  options.optimizer_place = OptimizerPlace::kWorker;
  EXPECT_EQ(stored(options), 40);
}

TEST(ShardTest, ShardOnlyStoresAndSendsLayersByFactors) {
  ShardDriver running(TestJob(2, 1, {FactorLayer("fc", 2, 2, true, 4)},
                              PlainSgd(), Scheme::kFactor));
  const auto initial = IntegerValues(6, 0);
  running.Contribute(0, kInitialRound, initial);
  // The shard never updates the layer, so it has no state.
  EXPECT_EQ(running.shard().stored_bytes(), 24);
  EXPECT_EQ(running.Result(running.Pull(1, kInitialRound), kInitialRound),
            initial);
  EXPECT_EQ(running.shard().oldest_open_round(), std::nullopt);
}

TEST(ShardTest, OldestOpenRoundNamesTheMissingWorkers) {
  ShardDriver running(TestJob(
      3, 1, {VectorLayer("first", 4), VectorLayer("second", 4)}, PlainSgd()));
  const std::vector<float> values(4, 1.0f);
  const auto expect_open = [&](int layer, int64_t round,
                               const std::vector<int32_t>& missing) {
    const auto open = running.shard().oldest_open_round();
    ASSERT_TRUE(open.has_value());
    EXPECT_EQ(open->layer, layer);
    EXPECT_EQ(open->round, round);
    EXPECT_THAT(open->missing_workers, testing::ElementsAreArray(missing));
  };
  running.Contribute(0, kInitialRound, values);
  expect_open(1, kInitialRound, {0});
  running.Contribute(0, kInitialRound, values, /*layer=*/1);
  running.Contribute(1, 0, values);
  expect_open(0, 0, {0, 2});
  running.Contribute(0, 0, values);
  running.Contribute(2, 0, values);
  expect_open(1, 0, {0, 1, 2});
}

TEST(ShardTest, ShardWithoutChunksWaitsForNothing) {
  const Shard shard(TestJob(1, 3, {VectorLayer("scale", 1)}), 2);
  EXPECT_EQ(shard.chunk_count(), 0);
  EXPECT_EQ(shard.stored_bytes(), 0);
  EXPECT_EQ(shard.oldest_open_round(), std::nullopt);
}

// OnHeader changes nothing: announced frames that never arrive don't count.
TEST(ShardTest, AnnouncedFrameWithoutPayloadDoesNotCount) {
  ShardDriver running(/*workers=*/2, {1});
  const Frame frame = running.Contribution(0, 0, {1})[0];
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_FALSE(running.Discards(frame));
  }
  EXPECT_THAT(running.shard().oldest_open_round()->missing_workers,
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
  ShardDriver running(job, chunks[1].shard);
  running.Contribute(0, kInitialRound, IntegerValues(5, 0), 0, /*chunk=*/1);
  for (int worker = 0; worker < 3; ++worker) {
    running.Contribute(worker, 0, IntegerValues(5, worker), 0, /*chunk=*/1);
  }
  ShardDriver factors(job, job->placement.layer_chunks(1)[0].shard);
  factors.Contribute(0, kInitialRound, IntegerValues(4, 0), /*layer=*/1);

  FrameHeader header =
      running.Contribution(1, 1, IntegerValues(5, 9), 0, /*chunk=*/1)[0].header;
  ASSERT_TRUE(running.shard().OnHeader(kWorker1, header).ok());
  GetParam().spoil(header);
  const Shard& target = header.layer == 1 ? factors.shard() : running.shard();
  const absl::Status status = target.OnHeader(GetParam().from, header).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), HasSubstr(DescribeFrame(header)));
}

constexpr char kBadPull[] = "a pull must have no payload, offset 0 and part 0";

void BecomePull(FrameHeader& header) {
  header.kind = FrameKind::kPull;
  header.wire = WireType::kNone;
  header.payload_bytes = 0;
}

// Row for a frame of a kind that no shard takes.
RefusalCase OtherKind(const char* name, FrameKind kind) {
  return {name, kWorker1,
          [kind](FrameHeader& header) {
            const bool has_values =
                kind == FrameKind::kResult || kind == FrameKind::kFactors;
            header.kind = kind;
            if (!has_values) header.wire = WireType::kNone;
            if (kind == FrameKind::kPullRound) header.payload_bytes = 0;
          },
          "shards take contributions, pulls and owned layers"};
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
                      BecomePull(h);
                      h.payload_bytes = 20;
                    },
                    kBadPull},
        RefusalCase{"PullWithAnOffset", kWorker1,
                    [](FrameHeader& h) {
                      BecomePull(h);
                      h.offset = 65536;
                    },
                    kBadPull},
        RefusalCase{"PullWithAPart", kWorker1,
                    [](FrameHeader& h) {
                      BecomePull(h);
                      h.part = 1;
                    },
                    kBadPull},
        RefusalCase{"PullOfALaterRound", kWorker1,
                    [](FrameHeader& h) {
                      BecomePull(h);
                      h.round = 2;
                    },
                    "this worker takes part from round 0 on"},
        RefusalCase{"Part", kWorker1, [](FrameHeader& h) { h.part = 1; },
                    "the part must be 0"},
        OtherKind("PullRound", FrameKind::kPullRound),
        OtherKind("Result", FrameKind::kResult),
        OtherKind("Factors", FrameKind::kFactors),
        OtherKind("Hello", FrameKind::kHello),
        OtherKind("Refusal", FrameKind::kRefusal)),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardTest, BeforeTheInitialParametersRound0IsRefused) {
  const ShardDriver waiting(
      TestJob(2, 1, {VectorLayer("scale", 2)}, PlainSgd()));
  waiting.ExpectRefused(waiting.Contribution(1, 0, {1, 2})[0].header,
                        "round -1 is open");
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

TEST(ShardTest, PullGivesTheInitialRoundIfWorkersUpdate) {
  ShardDriver running(/*workers=*/1, {7}, PlainSgd(OptimizerPlace::kWorker));
  running.Contribute(0, 0, {9});
  const Effects pulled = running.Pull(0, kInitialRound);
  ASSERT_THAT(pulled.sent, SizeIs(1));
  // The values are the initial parameters, not the mean of round 0.
  EXPECT_EQ(pulled.sent[0].frame.header.round, kInitialRound);
  EXPECT_THAT(running.Result(pulled, kInitialRound), ElementsAre(7));
}

TEST(ShardDeathTest, FrameForAnotherShardsChunkEndsTheProcess) {
  const JobPtr job =
      TestJob(1, 2, {VectorLayer("scale", 1), VectorLayer("bias", 1)});
  const auto chunks = job->placement.chunks();
  const Chunk& chunk = *absl::c_find_if(
      chunks, [](const Chunk& each) { return each.shard == 1; });
  ShardDriver driver(job);
  Outbox out;
  const Frame frame = PullFrame(*job, kWorker0, FrameKind::kPull, chunk.layer,
                                chunk.index, kInitialRound);
  EXPECT_DEATH(driver.shard().OnFrame(kWorker0, frame, out), "at shard 0");
}

// ---- From one epoch to the next.

// The coordinator relies on the report of a frozen shard.
TEST(ShardEpochTest, FrozenShardTakesNoContributions) {
  ShardDriver running(/*workers=*/2, {10});
  running.Contribute(0, 0, {1});
  const Frame last = running.Contribution(1, 0, {3}).front();
  const auto landing = running.shard().OnHeader(PeerId::Worker(1), last.header);
  ASSERT_TRUE(landing.ok()) << landing.status();
  EXPECT_NE(landing->kind, Landing::Kind::kDiscard);
  running.shard().Freeze();
  EXPECT_TRUE(running.Discards(last));
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
  ShardDriver running(/*workers=*/3, Values(10), PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(0));
  running.Contribute(1, 0, Values(1));
  EXPECT_EQ(running.Result(running.Contribute(2, 0, Values(2)), 0), Expected());
  // In the epoch that closed the round, every worker gets its result unasked.
  for (const Frame& frame : running.Contribution(1, 0, Values(1))) {
    EXPECT_TRUE(running.Discards(frame));
  }

  for (int epoch = 0; epoch < 2; ++epoch) {
    running.EnterWith({{0, 0}, {1, 0}});
    for (const int rank : {1, 0}) {
      const auto frames = running.Contribution(rank, 0, Values(77));
      for (const Frame& frame : frames) EXPECT_TRUE(running.Discards(frame));
      const Effects answer = running.Pull(rank, 0);
      EXPECT_EQ(answer.sent.size(), 2u);
      EXPECT_EQ(SentTo(answer.sent, PeerId::Worker(rank)).size(), 2u);
      EXPECT_EQ(running.Result(answer, 0), Expected());
      EXPECT_EQ(answer.sent[0].frame.header.epoch, running.job().epoch);
      for (const Frame& frame : frames) EXPECT_TRUE(running.Discards(frame));
      EXPECT_TRUE(running.Discards(running.PullOf(rank, 0)));
    }
  }

  // Repeated contributions do not count.
  running.Contribute(0, 1, Values(1));
  const Effects closed = running.Contribute(1, 1, Values(1));
  const bool here = GetParam() == OptimizerPlace::kServer;
  EXPECT_EQ(running.Result(closed, 1), Values(here ? 8 : 1));
}

TEST_P(ShardRepeatTest, RoundsBeforeTheLastAreNotSentAgain) {
  ShardDriver running(/*workers=*/1, Values(10), PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(1));
  running.Contribute(0, 1, Values(1));
  running.Enter();
  EXPECT_TRUE(running.Discards(running.PullOf(0, 0)));
  EXPECT_EQ(running.Pull(0, 1).sent.size(), 2u);
}

// The parameters are still those before the round.
TEST_P(ShardRepeatTest, PullOfAnOpenRoundIsDiscarded) {
  ShardDriver running(/*workers=*/2, Values(10), PlainSgd(GetParam()));
  running.Contribute(0, 0, Values(2));
  running.Enter();
  EXPECT_TRUE(running.Discards(running.PullOf(0, 0)));
  running.Contribute(0, 0, Values(2));
  // Both workers get the result of a round of this epoch unasked.
  const Effects closed = running.Contribute(1, 0, Values(0));
  EXPECT_EQ(running.Result(closed, 0), Expected());
  EXPECT_TRUE(running.Discards(running.PullOf(1, 0)));
}

INSTANTIATE_TEST_SUITE_P(Places, ShardRepeatTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST(ShardEpochTest, JoinerIsSentTheRoundBeforeItsFirstStep) {
  ShardDriver running(/*workers=*/2, {0});
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
  EXPECT_TRUE(running.Discards(running.PullOf(3, 0)));
}

// The joiner needs only the result of the round before its first.
TEST(ShardEpochTest, JoinerThatAsksEarlyIsSentOneResult) {
  ShardDriver running(/*workers=*/2, {0});
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

// Frame that a worker of the epoch sends, or a worker outside of it.
struct EpochRefusalCase {
  const char* name;
  std::function<Frame(const ShardDriver&)> frame;
  const char* message;
};

class ShardEpochRefusalTest : public testing::TestWithParam<EpochRefusalCase> {
};

// Worker 0 goes on, worker 1 has left, worker 2 has died, and worker 5 begins
// with step 4.
TEST_P(ShardEpochRefusalTest, IsRefusedWithTheReason) {
  ShardDriver running(/*workers=*/3, {0});
  running.Enter([](Job& job) {
    job.workers = {{0, 0}, {5, 4}};
    job.crew.left_workers = {1};
  });
  running.ExpectRefused(GetParam().frame(running).header, GetParam().message);
  EXPECT_FALSE(running.Discards(running.PullOf(5, 3)));
}

EpochRefusalCase PullOfRound(const char* name, int64_t round) {
  return {name,
          [=](const ShardDriver& driver) { return driver.PullOf(5, round); },
          "this worker takes part from round 4 on"};
}

EpochRefusalCase Contributes(const char* name, int rank, const char* message) {
  return {name,
          [=](const ShardDriver& driver) {
            return driver.Contribution(rank, 0, {1})[0];
          },
          message};
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardEpochRefusalTest,
    testing::Values(
        PullOfRound("PullOfTheInitialRound", kInitialRound),
        PullOfRound("PullOfAnEarlierRound", 2),
        PullOfRound("PullOfTheFirstRound", 4),
        PullOfRound("PullOfALaterRound", 5),
        Contributes("ContributionBeforeTheFirstStep", 5,
                    "this worker takes part from round 4 on"),
        Contributes("WorkerThatHasLeft", 1, "the sender must be a worker"),
        Contributes("WorkerThatHasDied", 2, "not one of the job's 2 workers")),
    [](const auto& info) { return std::string(info.param.name); });

// Workers own the layer: a joiner gets it from one of them.
TEST(ShardEpochTest, MeansAreNotGivenToJoiners) {
  ShardDriver running(/*workers=*/1, {5}, PlainSgd(OptimizerPlace::kWorker));
  running.Contribute(0, 0, {1});
  running.Enter([](Job& job) {
    job.workers = {{0, 0}, {1, 1}};
    job.history.donor = 0;
  });
  running.ExpectRefused(running.PullOf(1, 0).header,
                        "this server has the values of round -1");
}

TEST(ShardEpochTest, EarlyPullsOfTheOldEpochAreNotAnswered) {
  ShardDriver running(TestJob(2, 1, {VectorLayer("scale", 1)}, PlainSgd()));
  running.Pull(1, kInitialRound);
  running.Enter();
  EXPECT_THAT(running.Contribute(0, kInitialRound, {3}).sent, IsEmpty());
}

TEST(ShardEpochTest, NextWorkerGivesTheInitialValuesIfTheFirstDies) {
  ShardDriver running(TestJob(3, 1, {VectorLayer("scale", 65537)}, PlainSgd()));
  const auto values = IntegerValues(65537, 11);
  running.Send(
      {running.Contribution(0, kInitialRound, IntegerValues(65537, 1))[1]});
  running.EnterWith({{1, 0}, {2, 0}});
  running.ExpectRefused(
      running.Contribution(2, kInitialRound, values)[0].header,
      "worker 1 alone sends the initial parameters");
  running.Contribute(1, kInitialRound, values);
  EXPECT_EQ(running.parameters(), values);
}

TEST(ShardReportTest, ClosedRoundIsTheLastThatAllChunksHaveClosed) {
  ShardDriver running(
      TestJob(1, 1,
              {VectorLayer("first", 4), VectorLayer("second", 4),
               FactorLayer("fc", 2, 2, false, 1)},
              PlainSgd(), Scheme::kFactor));
  const auto closed_after = [&](int layer, int64_t round) {
    running.Contribute(0, round, IntegerValues(4, 0), layer);
    return running.shard().closed_round();
  };
  EXPECT_EQ(running.shard().closed_round(), kInitialRound);
  EXPECT_EQ(closed_after(0, kInitialRound), kInitialRound);
  EXPECT_EQ(closed_after(0, 0), kInitialRound);
  EXPECT_EQ(closed_after(1, kInitialRound), kInitialRound);
  EXPECT_EQ(closed_after(1, 0), 0);
  EXPECT_EQ(closed_after(1, 1), 0);
  EXPECT_EQ(closed_after(0, 1), 1);
}

TEST(ShardReportTest, ShardWithoutRoundsReportsNone) {
  const JobPtr job = TestJob(1, 3, {FactorLayer("fc", 2, 2, false, 1)},
                             PlainSgd(), Scheme::kFactor);
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(Shard(job, index).closed_round(), std::nullopt) << index;
  }
}

// ---- Jobs with Overlap::kDecoupled: workers ask for each result.

struct ShardPullTest : testing::TestWithParam<OptimizerPlace> {
  static JobOptions Decoupled() {
    JobOptions options = PlainSgd(GetParam());
    options.overlap = Overlap::kDecoupled;
    return options;
  }
  void CloseRound(int64_t round) {
    for (const int worker : {0, 1}) running.Contribute(worker, round, {2, 2});
  }
  // Result of a round: the parameters, or the mean.
  std::vector<float> Either(std::vector<float> parameters,
                            std::vector<float> mean) const {
    return GetParam() == OptimizerPlace::kServer ? parameters : mean;
  }

  ShardDriver running{/*workers=*/2, {1, 2}, Decoupled()};
};

INSTANTIATE_TEST_SUITE_P(Places, ShardPullTest,
                         testing::Values(OptimizerPlace::kServer,
                                         OptimizerPlace::kWorker),
                         [](const auto& info) {
                           return std::string(OptimizerPlaceName(info.param));
                         });

TEST_P(ShardPullTest, WorkersAreSentOnlyRequestedResults) {
  running.Pull(1, 0);
  EXPECT_THAT(running.Contribute(0, 0, {2, 2}).sent, IsEmpty());
  // Worker 1 has asked before, worker 0 does so after.
  const Effects closed = running.Contribute(1, 0, {4, 4});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, PeerId::Worker(1));
  EXPECT_EQ(running.Result(closed, 0), Either({-2, -1}, {3, 3}));
  const Effects pulled = running.Pull(0, 0);
  ASSERT_THAT(pulled.sent, SizeIs(1));
  EXPECT_EQ(pulled.sent[0].to, PeerId::Worker(0));
  EXPECT_EQ(running.Result(pulled, 0), Either({-2, -1}, {3, 3}));
}

TEST_P(ShardPullTest, RoundIsSentOnce) {
  for (int64_t round = 0; round < 3; ++round) {
    CloseRound(round);
    EXPECT_THAT(running.Pull(0, round).sent, SizeIs(1));
    EXPECT_TRUE(running.Discards(running.PullOf(0, round)));
  }
}

TEST_P(ShardPullTest, OnlyTheOpenAndTheLastRoundCanBePulled) {
  CloseRound(0);
  CloseRound(1);
  for (const int64_t round : {0, 3}) {
    running.ExpectRefused(running.PullOf(0, round).header, "round 2 is open");
  }
  for (const int64_t round : {1, 2}) running.Pull(0, round);
}

// The values before its first round are a worker's first values.
TEST(ShardJoinerPullTest, WorkerWithoutAPartInARoundGetsNoResult) {
  JobOptions options = PlainSgd();
  options.overlap = Overlap::kDecoupled;
  ShardDriver running(/*workers=*/1, {1}, options);
  running.Contribute(0, 0, {2});
  running.EnterWith({{0, 0}, {7, 2}});
  running.ExpectRefused(running.PullOf(7, 0).header, "takes part from round 2");
  running.Pull(7, 1);
  const Effects closed = running.Contribute(0, 1, {2});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_EQ(closed.sent[0].to, PeerId::Worker(7));
}

// In a new epoch workers contribute again, and ask again.
TEST_P(ShardPullTest, ContributionToAClosedRoundAsksForNothing) {
  CloseRound(0);
  running.Pull(0, 0);
  running.Enter();
  EXPECT_THAT(running.Contribute(0, 0, {2, 2}).sent, IsEmpty());
  EXPECT_EQ(running.Result(running.Pull(0, 0), 0), Either({-1, 0}, {2, 2}));
}

}  // namespace
}  // namespace nereus
