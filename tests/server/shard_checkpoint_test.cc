// Tests of the values that a shard saves for a checkpoint, and of a shard that
// begins from one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "server/shard/shard.h"
#include "tests/server/shard_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

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

constexpr char kWhose[] =
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
                  [](auto& h) { h.sender = PeerId::Worker(3); }, kWhose},
        OwnedCase{"Server", [](auto& h) { h.sender = PeerId::Shard(0); },
                  "the sender must be a worker"},
        OfRound("InitialRound", kInitialRound, kWhose),
        OfRound("RoundBeforeASavedOne", 0, kWhose),
        OfRound("RoundAfterASavedOne", 2, kWhose),
        OfRound("NextSavedRound", 3, nullptr),
        OfRound("RoundAfterThatOne", 4, kWhose), OfPart("State", 1, nullptr),
        OfPart("PartAfterTheLast", 2, kWhose), OfPart("LaterPart", 3, kWhose),
        OfPart("LargestPart", 255, kWhose),
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
                  kWhose}),
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

}  // namespace
}  // namespace nereus
