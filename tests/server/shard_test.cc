// Tests of a shard, in this order: the rounds of a chunk and their refusals,
// one epoch after the other, checkpoints, partial rounds, and rounds of which
// only some blocks travel. Recovery is left to the laws of the simulator.
// shard_backup_test.cc has shards with a backup.

#include "server/shard/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/crc32c.h"
#include "common/compute/blocks.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::Each;
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

// ---- Values that a shard saves for a checkpoint, and shards that begin from
// one.

// Velocities are v = v / 2 + mean gradient, updates parameters - v, exactly.
JobOptions Momentum(int64_t checkpoint_every) {
  JobOptions options = PlainSgd();
  options.optimizer.momentum = 0.5f;
  options.checkpoint_every = checkpoint_every;
  return options;
}

// Fully connected 2 x 3: workers own it.
constexpr int64_t kOwned = 6;

JobPtr MixedJob(int workers, int64_t checkpoint_every) {
  return TestJob(workers, 1,
                 {VectorLayer("a", 1), VectorLayer("b", 1),
                  FactorLayer("fc", 2, 3, false, 1)},
                 Momentum(checkpoint_every), Scheme::kFactor);
}

std::vector<Frame> OwnedOf(const Job& job, int rank, int64_t round,
                           const std::vector<float>& values, uint8_t part) {
  return FramesOf(job, PeerId::Worker(rank), FrameKind::kOwned, 2, 0, round,
                  values, part);
}

// Shard of a job with one worker and layers of one value each, all begun.
class ShardCheckpointTest : public testing::Test {
 protected:
  ShardCheckpointTest() : driver_(MixedJob(1, /*checkpoint_every=*/2)) {
    Contribute(0, kInitialRound, 10);
    Contribute(1, kInitialRound, 20);
    driver_.Contribute(0, kInitialRound, IntegerValues(kOwned, 0), 2);
  }
  Effects Contribute(int layer, int64_t round, float value) {
    return driver_.Contribute(0, round, {value}, layer);
  }
  Effects SendOwned(int64_t round) {
    driver_.Send(
        OwnedOf(driver_.job(), 0, round, IntegerValues(kOwned, round), 0));
    return driver_.Send(
        OwnedOf(driver_.job(), 0, round, IntegerValues(kOwned, -round), 1));
  }

  ShardDriver driver_;
};

TEST_F(ShardCheckpointTest, CheckpointHasItsRoundThoughTheNextIsClosed) {
  for (const int64_t round : {0, 1}) {
    for (const int layer : {0, 1}) {
      EXPECT_THAT(Contribute(layer, round, 2).saves, IsEmpty());
    }
  }
  const std::vector<SaveCheckpoint> saves = SendOwned(1).saves;
  ASSERT_THAT(saves, SizeIs(1));
  // Before the disk reads them, two more rounds are closed.
  for (const int64_t round : {2, 3}) {
    for (const int layer : {0, 1}) Contribute(layer, round, 100);
  }
  EXPECT_EQ(saves[0].round, 1);
  ASSERT_THAT(saves[0].values, SizeIs(3));
  // Velocities 2 and 3.
  EXPECT_THAT(FloatsOf(saves[0].values[0].parameters), ElementsAre(10 - 5));
  EXPECT_THAT(FloatsOf(saves[0].values[0].state), ElementsAre(3));
  EXPECT_THAT(FloatsOf(saves[0].values[1].parameters), ElementsAre(20 - 5));
  EXPECT_EQ(saves[0].values[2].layer, 2);
  EXPECT_EQ(FloatsOf(saves[0].values[2].parameters), IntegerValues(kOwned, 1));
  EXPECT_EQ(FloatsOf(saves[0].values[2].state), IntegerValues(kOwned, -1));
}

TEST_F(ShardCheckpointTest, ChunkMayBeARoundAhead) {
  for (const int64_t round : {0, 1, 2}) Contribute(0, round, 1);
  SendOwned(1);
  Contribute(1, 0, 1);
  const Effects closed = Contribute(1, 1, 1);
  ASSERT_THAT(closed.saves, SizeIs(1));
  EXPECT_THAT(FloatsOf(closed.saves[0].values[0].parameters),
              ElementsAre(10 - 2.5f));
}

TEST_F(ShardCheckpointTest, NothingIsKeptOfRoundsWithoutACheckpoint) {
  const auto is_kept = [&] {
    return !driver_.shard().chunk(0, 0).held().parameters.unique();
  };
  Contribute(0, 0, 1);
  EXPECT_FALSE(is_kept());
  Contribute(0, 1, 1);
  EXPECT_TRUE(is_kept());
}

constexpr char kNotOwned[] =
    "sends worker-owned layers, and only as of rounds that are saved";

// Frame of the worker-owned layer, as of round 1 and of worker 0, which an edit
// changes. Without a message the shard takes it.
struct OwnedCase {
  const char* name;
  std::function<void(FrameHeader&)> edit;
  const char* message;
};

class OwnedFrameTest : public ShardCheckpointTest,
                       public testing::WithParamInterface<OwnedCase> {
 protected:
  OwnedFrameTest() { driver_.EnterWith({{0, 0}, {3, 0}}); }
};

TEST_P(OwnedFrameTest, IsTakenOrRefusedWithTheReason) {
  Frame frame = OwnedOf(driver_.job(), 0, 1, IntegerValues(kOwned, 1), 0)[0];
  GetParam().edit(frame.header);
  if (GetParam().message != nullptr) {
    driver_.ExpectRefused(frame.header, GetParam().message);
    return;
  }
  EXPECT_FALSE(driver_.Discards(frame));
  driver_.Send({frame});
  // A frame counts once.
  EXPECT_TRUE(driver_.Discards(frame));
}

OwnedCase OfRound(const char* name, int64_t round, const char* message) {
  return {name, [=](FrameHeader& h) { h.round = round; }, message};
}

OwnedCase OfPart(const char* name, uint8_t part, const char* message) {
  return {name, [=](FrameHeader& h) { h.part = part; }, message};
}

INSTANTIATE_TEST_SUITE_P(
    All, OwnedFrameTest,
    testing::Values(
        OwnedCase{"FirstWorker", [](auto&) {}, nullptr},
        OwnedCase{"AnotherWorker",
                  [](auto& h) { h.sender = PeerId::Worker(3); }, kNotOwned},
        OwnedCase{"Server", [](auto& h) { h.sender = PeerId::Shard(0); },
                  "the sender must be a worker"},
        OfRound("InitialRound", kInitialRound, kNotOwned),
        OfRound("RoundBeforeASavedOne", 0, kNotOwned),
        OfRound("RoundAfterASavedOne", 2, kNotOwned),
        OfRound("NextSavedRound", 3, nullptr),
        OfRound("RoundAfterThatOne", 4, kNotOwned), OfPart("State", 1, nullptr),
        OfPart("PartAfterTheLast", 2, kNotOwned),
        OfPart("LaterPart", 3, kNotOwned),
        OfPart("LargestPart", 255, kNotOwned),
        OwnedCase{"Offset", [](auto& h) { h.offset = 1; },
                  "the offset must be a multiple"},
        OwnedCase{"OffsetBehindTheChunk",
                  [](auto& h) { h.offset = kFrameElementsMax; }, "below 6"},
        OwnedCase{"ShortPayload", [](auto& h) { h.payload_bytes = 20; },
                  "the payload must have 24 bytes"},
        OwnedCase{"LayerThatTheShardUpdates",
                  [](auto& h) {
                    h.layer = 0;
                    h.payload_bytes = 4;
                  },
                  kNotOwned}),
    [](const auto& info) { return std::string(info.param.name); });

// Another shard has lost its part of the last round, so all save it again. This
// shard has saved its part (simulation seed 627).
TEST_F(ShardCheckpointTest, OwnedFramesOfASavedLastRoundAreDiscarded) {
  const auto save_last = [&] {
    Outbox out;
    driver_.shard().SaveLast(/*round=*/2, /*sender=*/0, out);
    return Carry(out).saves;
  };
  for (const int64_t round : {0, 1, 2}) {
    for (const int layer : {0, 1}) Contribute(layer, round, 2);
  }
  SendOwned(1);
  EXPECT_THAT(save_last(), IsEmpty());
  EXPECT_THAT(SendOwned(2).saves, SizeIs(1));
  driver_.Enter();
  EXPECT_THAT(save_last(), IsEmpty());
  for (const Frame& frame :
       OwnedOf(driver_.job(), 0, 2, IntegerValues(kOwned, 2), 0)) {
    EXPECT_TRUE(driver_.Discards(frame));
  }
}

// The job goes on from a checkpoint of round 8: workers 4 and 5.
JobPtr RestoredJob(JobOptions options = Momentum(/*checkpoint_every=*/2),
                   int32_t state_arrays = 0) {
  const JobPtr job =
      TestJob(2, 1, {VectorLayer("a", 1), FactorLayer("fc", 2, 3, false, 1)},
              options, Scheme::kFactor);
  return EpochAfter(*job, [&](Job& restored) {
    restored.workers = {{4, 9}, {5, 9}};
    restored.history.first_step = 9;
    restored.history.base_round = 8;
    restored.history.contributions_before = 18;
    restored.state_arrays = state_arrays;
  });
}

// The disk has values that follow from layer and array.
std::vector<float> OnDisk(int layer, int array, int64_t elements) {
  return IntegerValues(elements, layer * 100 + array * 10 + 3);
}

void Load(const LoadCheckpoint& load) {
  for (const ChunkValues& values : load.values) {
    const int64_t arrays = values.state.bytes() / values.parameters.bytes();
    for (int64_t array = 0; array <= arrays; ++array) {
      const auto floats =
          OnDisk(values.layer, static_cast<int>(array), values.length);
      float* const into =
          array == 0 ? values.parameters.floats()
                     : values.state.floats() + (array - 1) * values.length;
      absl::c_copy(floats, into);
    }
  }
}

// Shard that has loaded the values on disk.
class RestoredShard : public ShardDriver {
 public:
  explicit RestoredShard(JobPtr job, int index = 0)
      : ShardDriver(std::move(job), index) {
    Outbox out;
    shard().Start(out);
    loads_ = Carry(out).loads;
    for (const LoadCheckpoint& load : loads_) Load(load);
  }
  const std::vector<LoadCheckpoint>& loads() const { return loads_; }

 private:
  std::vector<LoadCheckpoint> loads_;
};

TEST(ShardRestoreTest, NewJobLoadsNothing) {
  EXPECT_THAT(RestoredShard(MixedJob(1, 1)).loads(), IsEmpty());
}

TEST(ShardRestoreTest, ShardWithoutChunksLoadsNothing) {
  const JobPtr job =
      EpochAfter(*TestJob(1, 2, {VectorLayer("a", 1)}), [](Job& restored) {
        restored.history.base_round = 8;
        restored.history.first_step = 9;
        restored.workers = {{0, 9}};
      });
  EXPECT_THAT(RestoredShard(job, 1).loads(), IsEmpty());
}

TEST(ShardRestoreTest, LoadsAllChunksWithTheirState) {
  RestoredShard restored(RestoredJob());
  ASSERT_THAT(restored.loads(), SizeIs(1));
  const LoadCheckpoint& load = restored.loads()[0];
  EXPECT_EQ(load.round, 8);
  ASSERT_THAT(load.values, SizeIs(2));
  for (const ChunkValues& values : load.values) {
    EXPECT_EQ(values.offset, 0);
    EXPECT_EQ(values.length, values.layer == 0 ? 1 : kOwned);
    EXPECT_EQ(values.parameters.float_count(), values.length);
    EXPECT_EQ(values.state.float_count(), values.length);
  }
  EXPECT_EQ(restored.parameters(), OnDisk(0, 0, 1));
  EXPECT_EQ(restored.shard().closed_round(), 8);
}

TEST(ShardRestoreTest, CallersStateComesInAsManyParts) {
  JobOptions options = Momentum(0);
  options.optimizer_place = OptimizerPlace::kWorker;
  RestoredShard restored(RestoredJob(options, /*state_arrays=*/3));
  const auto sent = restored.Pull(4, 8).sent;
  ASSERT_THAT(sent, SizeIs(4));
  for (const int part : {0, 1, 2, 3}) {
    EXPECT_EQ(ValuesIn(sent, FrameKind::kResult, 0, 0, 8, 1,
                       static_cast<uint8_t>(part)),
              OnDisk(0, part, 1));
  }
  // Rounds go on with averages, which have no state.
  restored.Contribute(4, 9, {1});
  const Effects closed = restored.Contribute(5, 9, {3});
  ASSERT_THAT(closed.sent, SizeIs(1));
  EXPECT_THAT(restored.Result(closed, 9), ElementsAre(2));
}

TEST(ShardRestoreTest, NoWorkerGivesInitialParameters) {
  const RestoredShard restored(RestoredJob());
  for (const Frame& frame : restored.Contribution(4, kInitialRound, {77})) {
    EXPECT_TRUE(restored.Discards(frame));
  }
}

// ---- Partial rounds.

// Length of a chunk of several frames.
constexpr int64_t kPartialElements = 140000;

JobOptions Partial(Quorum quorum, int64_t staleness = kStalenessMax) {
  JobOptions options = PlainSgd();
  options.rounds.quorum = quorum;
  options.rounds.staleness = staleness;
  return options;
}

JobPtr PartialJob(int workers, JobOptions options) {
  return TestJob(workers, 1, {VectorLayer("v", kPartialElements)}, options);
}

// A shard with parameters that begin with 0. Worker r's gradient of step s is
// GradientOf(r, s) everywhere.
class PartialShard : public ShardDriver {
 public:
  explicit PartialShard(JobPtr job) : ShardDriver(std::move(job)) {
    Contribute(0, kInitialRound, std::vector<float>(kPartialElements, 0.0f));
  }

  static float GradientOf(int rank, int64_t step) {
    return static_cast<float>((rank + 1) * 16 + step);
  }
  std::vector<Frame> Frames(int rank, int64_t step) const {
    return Contribution(
        rank, step,
        std::vector<float>(kPartialElements, GradientOf(rank, step)));
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
  EXPECT_EQ(values[kPartialElements - 1], -G(0, 0) / 2);
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
  EXPECT_EQ(values[kPartialElements - 1], -(G(0, 0) + G(1, 0)) / 2);
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

// ---- Rounds of which only some blocks travel.

// Layer 1 comes first in the blocks' order: one of 256 and 44 values of the
// next, of which layer 0 has the rest.
constexpr int64_t kFirstElements = 600;   // Frames of 212, 256 and 132.
constexpr int64_t kSecondElements = 300;  // 256 and 44.

JobOptions SparseOptions(float momentum = 0.0f) {
  JobOptions options = PlainSgd();
  options.sparsity.share = 0.5;
  options.sparsity.block_elements = 256;
  options.sparsity.dense_steps = 0;
  options.optimizer.momentum = momentum;
  return options;
}

JobPtr SparseJob(int workers, JobOptions options = SparseOptions()) {
  return TestJob(
      workers, 1,
      {VectorLayer("a", kFirstElements), VectorLayer("b", kSecondElements)},
      options);
}

// A contribution to layer 0: `value` everywhere in these frames; true: it was
// held back before.
std::vector<Frame> SparseContribution(
    const Job& job, int rank, int64_t round,
    const std::map<int64_t, bool>& chosen, float value,
    FrameKind kind = FrameKind::kContribution) {
  const Chunk& chunk = job.placement.layer_chunks(0)[0];
  const FrameGrid grid = job.GridOf(chunk);
  std::vector<Frame> frames;
  FrameHeader header = MakeHeader(job, PeerId::Worker(rank), kind, 0, 0, round);
  header.wire = job.WireOf(header);
  header.frames = static_cast<uint16_t>(chosen.size());
  for (const auto& [index, resumed] : chosen) {
    header.part = resumed ? kResumedPart : kValuesPart;
    Frame frame = {CutHeader(job, header, grid, index),
                   FloatBuffer(std::vector<float>(grid.Length(index), value))};
    frame.header.payload_crc = Crc32c(
        frame.payload.data(), static_cast<size_t>(frame.payload.bytes()));
    frames.push_back(std::move(frame));
  }
  if (frames.empty()) frames.push_back({header, Buffer()});
  return frames;
}

class ShardSparseTest : public testing::Test {
 protected:
  explicit ShardSparseTest(JobPtr job = SparseJob(2))
      : driver_(std::move(job)) {
    driver_.Contribute(0, kInitialRound,
                       std::vector<float>(kFirstElements, 0.0f));
  }

  Effects Push(int rank, int64_t round, const std::map<int64_t, bool>& chosen,
               float value) {
    return driver_.Send(
        SparseContribution(driver_.job(), rank, round, chosen, value));
  }
  // Both workers push as much; what went out.
  Effects PushBoth(int64_t round, const std::map<int64_t, bool>& chosen,
                   float value) {
    EXPECT_THAT(Push(0, round, chosen, value).sent, IsEmpty());
    return Push(1, round, chosen, value);
  }
  std::string Refusal(const Frame& frame) {
    const auto delivery = Deliver(driver_.shard(), frame.header.sender, frame);
    EXPECT_EQ(delivery.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(delivery.status().message());
  }
  // The first values of the three frames.
  std::vector<float> Parameters() const {
    const float* values =
        driver_.shard().chunk(0, 0).held().parameters.floats();
    return {values[0], values[212], values[468]};
  }
  static std::vector<uint32_t> Offsets(const Effects& effects) {
    std::vector<uint32_t> offsets;
    for (const auto& sent : effects.sent) {
      offsets.push_back(sent.frame.header.offset);
    }
    return offsets;
  }

  ShardDriver driver_;
};

TEST_F(ShardSparseTest, ChunksAreCutAtTheBlocksBoundaries) {
  const FrameGrid first =
      driver_.job().GridOf(driver_.job().placement.layer_chunks(0)[0]);
  EXPECT_EQ(first.Count(), 3);
  EXPECT_EQ(first.Length(0), 212);
  EXPECT_EQ(first.Length(1), 256);
  EXPECT_EQ(first.Length(2), 132);
  EXPECT_EQ(
      driver_.job().FirstBlock(driver_.job().placement.layer_chunks(0)[0]), 1);
  const FrameGrid second =
      driver_.job().GridOf(driver_.job().placement.layer_chunks(1)[0]);
  EXPECT_EQ(second.Count(), 2);
  EXPECT_EQ(second.Length(0), 256);
  EXPECT_EQ(second.Length(1), 44);
  EXPECT_EQ(driver_.job().block_count(), 4);
}

TEST_F(ShardSparseTest, ChosenBlocksAreUpdatedAndSentBack) {
  const Effects effects = PushBoth(0, {{0, false}, {2, false}}, 3.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-3, 0, -3));
  EXPECT_THAT(Offsets(effects), ElementsAre(0, 468));
  EXPECT_EQ(driver_.shard().chunk(0, 0).round(), 1);
}

TEST_F(ShardSparseTest, EmptyFrameClosesARoundWithoutBlocks) {
  const Effects effects = PushBoth(0, {}, 0.0f);
  ASSERT_THAT(effects.sent, SizeIs(1));
  EXPECT_EQ(effects.sent[0].frame.payload.bytes(), 0);
  EXPECT_EQ(driver_.shard().chunk(0, 0).round(), 1);
  EXPECT_THAT(Parameters(), Each(0.0f));
}

TEST_F(ShardSparseTest, BlocksOfAnotherChoiceAreRefused) {
  Push(0, 0, {{0, false}, {1, true}}, 1.0f);
  const auto refusal = [&](const std::map<int64_t, bool>& chosen, int frame) {
    return Refusal(
        SparseContribution(driver_.job(), 1, 0, chosen, 1.0f)[frame]);
  };
  EXPECT_THAT(
      refusal({}, 0),
      HasSubstr(
          "the frame count is 0, in earlier frames of the round it was 2"));
  EXPECT_THAT(
      refusal({{0, false}}, 0),
      HasSubstr(
          "the frame count is 1, in earlier frames of the round it was 2"));
  EXPECT_THAT(refusal({{0, false}, {2, false}}, 1),
              HasSubstr("the round already has 2 frames of other blocks"));
  EXPECT_THAT(
      refusal({{0, true}, {1, true}}, 0),
      HasSubstr(
          "the part is 1, another contributor sent this frame with part 0"));
  // A frame of a worker that has sent all of its frames.
  EXPECT_THAT(Refusal(SparseContribution(driver_.job(), 0, 0,
                                         {{1, true}, {2, false}}, 1.0f)[1]),
              HasSubstr("all 2 frames of this contributor have arrived"));
  // The others go on.
  EXPECT_THAT(Push(1, 0, {{0, false}, {1, true}}, 1.0f).sent, SizeIs(2));
}

// That holds too if no worker has sent all of its frames.
TEST_F(ShardSparseTest, ContributionsOfDifferentBlocksAreNotMixed) {
  const auto frames = [&](int rank, const std::map<int64_t, bool>& chosen) {
    return SparseContribution(driver_.job(), rank, 0, chosen, 1.0f);
  };
  driver_.Send({frames(0, {{0, false}, {2, false}})[0]});
  driver_.Send({frames(1, {{1, false}, {2, false}})[0]});
  EXPECT_THAT(Refusal(frames(0, {{0, false}, {2, false}})[1]),
              HasSubstr("the round already has 2 frames of other blocks"));
}

// Header of the only frame of a contribution, which an edit spoils.
struct Contradiction {
  const char* name;
  std::map<int64_t, bool> chosen;
  std::function<void(FrameHeader&)> edit;
  const char* message;
};

class ShardSparseHeaderTest
    : public ShardSparseTest,
      public testing::WithParamInterface<Contradiction> {};

TEST_P(ShardSparseHeaderTest, ContradictionIsRefused) {
  Frame frame =
      SparseContribution(driver_.job(), 0, 0, GetParam().chosen, 1.0f)[0];
  GetParam().edit(frame.header);
  EXPECT_THAT(Refusal(frame), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardSparseHeaderTest,
    testing::Values(Contradiction{"ValuesOfNoFrame",
                                  {{0, false}},
                                  [](auto& h) { h.frames = 0; },
                                  "the frame count is 0, must be from 1 to 3"},
                    Contradiction{"MoreFramesThanBlocks",
                                  {{0, false}},
                                  [](auto& h) { h.frames = 4; },
                                  "the frame count is 4, must be from 1 to 3"},
                    Contradiction{"UnknownPart",
                                  {{0, false}},
                                  [](auto& h) { h.part = kResumedPart + 1; },
                                  "the frame count is 1, must be from 1 to 3"},
                    Contradiction{"FrameWithoutValues",
                                  {},
                                  [](auto& h) { h.frames = 1; },
                                  "the frame count is 1, must be from 1 to 3"},
                    Contradiction{"OffsetBetweenBlocks",
                                  {{1, false}},
                                  [](auto& h) { h.offset = 256; },
                                  "a multiple of 256 less 44"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardDenseTest, DenseRoundHasAllFrames) {
  const JobPtr job = TestJob(1, 1, {VectorLayer("a", 5)});
  Shard shard(job, 0);
  Frame frame = FramesOf(*job, PeerId::Worker(0), FrameKind::kContribution, 0,
                         0, kInitialRound, std::vector<float>(5, 1.0f))[0];
  frame.header.frames = 1;
  const auto delivery = Deliver(shard, PeerId::Worker(0), frame);
  EXPECT_THAT(std::string(delivery.status().message()),
              HasSubstr("the frame count is 1, must be 0"));
}

class ShardMomentumTest : public ShardSparseTest {
 protected:
  ShardMomentumTest() : ShardSparseTest(SparseJob(2, SparseOptions(0.5f))) {}
};

// A block that was held back brings its momentum, and has none afterwards.
TEST_F(ShardMomentumTest, BlockThatWasHeldBackRestartsItsMomentum) {
  PushBoth(0, {{0, false}, {1, false}, {2, false}}, 4.0f);
  EXPECT_THAT(Parameters(), Each(-4.0f));
  PushBoth(1, {{0, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-4 - (4 + 2), -4, -4));
  PushBoth(2, {{0, false}, {1, true}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-10 - (4 + 3), -8, -4));
  PushBoth(3, {{1, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-17, -12, -4));
  PushBoth(4, {{1, false}}, 4.0f);
  EXPECT_THAT(Parameters(), ElementsAre(-17, -12 - (4 + 2), -4));
}

// A worker that asks for a round again may have begun it with another choice.
TEST_F(ShardSparseTest, RoundClosedInAnEarlierEpochIsAnsweredWithAllValues) {
  PushBoth(0, {{1, false}}, 3.0f);
  driver_.Enter();
  const Frame question = driver_.PullOf(1, 0);
  const Effects again = driver_.Send({question});
  EXPECT_THAT(Offsets(again), ElementsAre(0, 212, 468, 0));
  EXPECT_EQ(again.sent.back().frame.payload.bytes(), 0);
  EXPECT_THAT(Parameters(), ElementsAre(0, -3, 0));
  // Once; and the worker's contribution does not count.
  EXPECT_THAT(Push(1, 0, {{2, true}}, 9.0f).sent, IsEmpty());
  EXPECT_THAT(driver_.Send({question}).sent, IsEmpty());
}

// A worker may be done with a step, and leave, before all norms are there.
TEST_F(ShardSparseTest, BlockLayerDoesNotCountForTheClosedRound) {
  for (const auto& [layer, elements] :
       {std::pair{1, kSecondElements}, std::pair{2, int64_t{4}}}) {
    driver_.Contribute(0, kInitialRound,
                       std::vector<float>(elements, kFirstChoice), layer);
  }
  PushBoth(0, {}, 0.0f);
  for (const int rank : {0, 1}) {
    FrameHeader none = MakeHeader(driver_.job(), PeerId::Worker(rank),
                                  FrameKind::kContribution, 1, 0, 0);
    none.wire = driver_.job().WireOf(none);
    driver_.Send({{none, Buffer()}});
  }
  EXPECT_EQ(driver_.shard().chunk(2, 0).round(), 0);
  EXPECT_EQ(driver_.shard().closed_round(), 0);
}

// All workers that were to choose the blocks of round 1 are gone. They had done
// step 0 of layer 0.
TEST_F(ShardSparseTest, ChoiceStaysIfAllItsWorkersAreGone) {
  const std::vector<float> choice = {1, 1, 0, 1};
  driver_.Contribute(0, kInitialRound, choice, /*layer=*/2);
  EXPECT_EQ(driver_.shard().chunk(2, 0).round(), 0);
  PushBoth(0, {}, 0.0f);
  driver_.Enter([](Job& job) {
    job.workers = {{2, 1}};
    job.history.first_step = 1;
  });
  const Effects effects = driver_.Pull(2, 0, /*layer=*/2);
  ASSERT_THAT(effects.sent, SizeIs(1));
  EXPECT_EQ(FloatsOf(effects.sent[0].frame.payload), choice);
  // Whether the model's chunks are at that round is another matter.
  EXPECT_EQ(driver_.shard().closed_round(), kInitialRound);
}

TEST_F(ShardSparseTest, ChoiceIsByTheSumOfAllNorms) {
  const auto norms = [&](int rank, const std::vector<float>& values,
                         int64_t round) {
    return driver_.Contribute(rank, round, values, /*layer=*/2);
  };
  norms(0, std::vector<float>(4, kFirstChoice), kInitialRound);
  norms(0, {5, 0, 3, 0}, 0);
  const Effects effects = norms(1, {0, 4, 3, 0}, 0);
  // 5, 4, 6, 0: two of four.
  EXPECT_THAT(FloatsOf(effects.sent[0].frame.payload), ElementsAre(1, 0, 1, 0));
}

}  // namespace
}  // namespace nereus
