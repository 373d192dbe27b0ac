// Tests of the values that a shard saves for a checkpoint, and of a shard that
// begins from one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "server/shard/shard.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Velocities are v = v / 2 + mean gradient, updates parameters - v, exactly.
JobOptions Momentum(int64_t checkpoint_every) {
  JobOptions options;
  options.optimizer.learning_rate = 1.0f;
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

std::vector<Frame> ContributionOf(const Job& job, int rank, int layer,
                                  int64_t round,
                                  const std::vector<float>& values) {
  return FramesOf(job, PeerId::Worker(rank), FrameKind::kContribution, layer, 0,
                  round, values);
}

Effects Contribute(Shard& shard, const Job& job, int rank, int layer,
                   int64_t round, const std::vector<float>& values) {
  return DeliverAll(shard, PeerId::Worker(rank),
                    ContributionOf(job, rank, layer, round, values));
}

std::vector<Frame> OwnedOf(const Job& job, int rank, int64_t round,
                           const std::vector<float>& values, uint8_t part) {
  return FramesOf(job, PeerId::Worker(rank), FrameKind::kOwned, 2, 0, round,
                  values, part);
}

Effects SendOwned(Shard& shard, const Job& job, int64_t round) {
  DeliverAll(shard, PeerId::Worker(0),
             OwnedOf(job, 0, round, IntegerValues(kOwned, round), 0));
  return DeliverAll(shard, PeerId::Worker(0),
                    OwnedOf(job, 0, round, IntegerValues(kOwned, -round), 1));
}

// Shard of a job with one worker and layers of one value each, all begun.
class ShardCheckpointTest : public testing::Test {
 protected:
  explicit ShardCheckpointTest(int64_t checkpoint_every = 2)
      : job_(MixedJob(1, checkpoint_every)), shard_(job_, 0) {
    Contribute(0, kInitialRound, 10);
    Contribute(1, kInitialRound, 20);
    nereus::Contribute(shard_, *job_, 0, 2, kInitialRound,
                       IntegerValues(kOwned, 0));
  }
  Effects Contribute(int layer, int64_t round, float value) {
    return nereus::Contribute(shard_, *job_, 0, layer, round, {value});
  }
  void Enter(const std::function<void(Job&)>& edit) {
    job_ = EpochAfter(*job_, edit);
    Outbox out;
    shard_.OnEpoch(job_, out);
  }

  JobPtr job_;
  Shard shard_;
};

TEST_F(ShardCheckpointTest, CheckpointHasItsRoundThoughTheNextIsClosed) {
  for (const int64_t round : {0, 1}) {
    for (const int layer : {0, 1}) {
      EXPECT_THAT(Contribute(layer, round, 2).saves, IsEmpty());
    }
  }
  const std::vector<SaveCheckpoint> saves = SendOwned(shard_, *job_, 1).saves;
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

TEST_F(ShardCheckpointTest, CheckpointDoesNotChangeLaterRounds) {
  JobPtr plain = MixedJob(1, /*checkpoint_every=*/0);
  Shard other(plain, 0);
  nereus::Contribute(other, *plain, 0, 0, kInitialRound, {10});
  std::vector<SaveCheckpoint> held;
  for (int64_t round = 0; round < 6; ++round) {
    const auto value = static_cast<float>(round + 1);
    Contribute(0, round, value);
    for (const auto& save : Contribute(1, round, value).saves) {
      held.push_back(save);
    }
    for (const auto& save : SendOwned(shard_, *job_, round | 1).saves) {
      held.push_back(save);
    }
    nereus::Contribute(other, *plain, 0, 0, round, {value});
    EXPECT_EQ(FloatsOf(shard_.chunk(0, 0).held().parameters),
              FloatsOf(other.chunk(0, 0).held().parameters))
        << round;
  }
  EXPECT_THAT(held, SizeIs(3));
}

TEST_F(ShardCheckpointTest, ChunkMayBeARoundAhead) {
  Contribute(0, 0, 1);
  Contribute(0, 1, 1);
  Contribute(0, 2, 1);
  SendOwned(shard_, *job_, 1);
  Contribute(1, 0, 1);
  const Effects closed = Contribute(1, 1, 1);
  ASSERT_THAT(closed.saves, SizeIs(1));
  EXPECT_THAT(FloatsOf(closed.saves[0].values[0].parameters),
              ElementsAre(10 - 2.5f));
}

TEST_F(ShardCheckpointTest, NothingIsKeptOfRoundsWithoutACheckpoint) {
  Contribute(0, 0, 1);
  EXPECT_TRUE(shard_.chunk(0, 0).held().parameters.unique());
  Contribute(0, 1, 1);
  EXPECT_FALSE(shard_.chunk(0, 0).held().parameters.unique());
}

class OwnedFrameTest : public ShardCheckpointTest {
 protected:
  OwnedFrameTest() {
    Enter([](Job& job) { job.workers = {{0, 0}, {3, 0}}; });
    header_ = OwnedOf(*job_, 0, 1, IntegerValues(kOwned, 1), 0)[0].header;
  }
  void ExpectRefused(const FrameHeader& header, const std::string& why) {
    const absl::Status status = shard_.OnHeader(header.sender, header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
  FrameHeader header_;
};

constexpr char kWhose[] =
    "sends worker-owned layers, and only as of rounds that are saved";

TEST_F(OwnedFrameTest, OwnedFramesAreOfTheFirstWorker) {
  EXPECT_TRUE(shard_.OnHeader(PeerId::Worker(0), header_).ok());
  header_.sender = PeerId::Worker(3);
  ExpectRefused(header_, kWhose);
  header_.sender = PeerId::Shard(0);
  ExpectRefused(header_, "the sender must be a worker");
}

TEST_F(OwnedFrameTest, OwnedFramesAreOfSavedRounds) {
  for (const int64_t round : {-1, 0, 2, 4}) {
    header_.round = round;
    ExpectRefused(header_, kWhose);
  }
  header_.round = 3;
  EXPECT_TRUE(shard_.OnHeader(PeerId::Worker(0), header_).ok());
}

TEST_F(OwnedFrameTest, OwnedFramesAreOfAPartOfTheLayer) {
  header_.part = 1;
  EXPECT_TRUE(shard_.OnHeader(PeerId::Worker(0), header_).ok());
  for (const int part : {2, 3, 255}) {
    header_.part = static_cast<uint8_t>(part);
    ExpectRefused(header_, kWhose);
  }
}

TEST_F(OwnedFrameTest, OwnedFramesFitTheChunk) {
  header_.offset = 1;
  ExpectRefused(header_, "the offset must be a multiple");
  header_.offset = kFrameElementsMax;
  ExpectRefused(header_, "below 6");
  header_.offset = 0;
  header_.payload_bytes = 20;
  ExpectRefused(header_, "the payload must have 24 bytes");
}

TEST_F(OwnedFrameTest, OwnedFramesAreNotOfLayersThatTheShardUpdates) {
  header_.layer = 0;
  header_.payload_bytes = 4;
  ExpectRefused(header_, kWhose);
}

TEST_F(OwnedFrameTest, CountsOnce) {
  const auto frames = OwnedOf(*job_, 0, 1, IntegerValues(kOwned, 1), 0);
  DeliverAll(shard_, PeerId::Worker(0), frames);
  const auto again = shard_.OnHeader(PeerId::Worker(0), frames[0].header);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->kind, Landing::Kind::kDiscard);
}

// Another shard has lost its part of the last round, so all save it again. This
// shard has saved its part (simulation seed 627).
TEST_F(ShardCheckpointTest, OwnedFramesOfASavedLastRoundAreDiscarded) {
  const auto save_last = [&] {
    Outbox out;
    shard_.SaveLast(/*round=*/2, /*sender=*/0, out);
    return Carry(out).saves;
  };
  for (const int64_t round : {0, 1, 2}) {
    for (const int layer : {0, 1}) Contribute(layer, round, 2);
  }
  SendOwned(shard_, *job_, 1);
  EXPECT_THAT(save_last(), IsEmpty());
  EXPECT_THAT(SendOwned(shard_, *job_, 2).saves, SizeIs(1));
  Enter([](Job&) {});
  EXPECT_THAT(save_last(), IsEmpty());
  for (const Frame& frame : OwnedOf(*job_, 0, 2, IntegerValues(kOwned, 2), 0)) {
    const auto landing = shard_.OnHeader(PeerId::Worker(0), frame.header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
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

Effects StartAndLoad(Shard& shard) {
  Outbox out;
  shard.Start(out);
  Effects started = Carry(out);
  for (const LoadCheckpoint& load : started.loads) Load(load);
  return started;
}

Effects Pull(Shard& shard, const Job& job, int rank, int layer, int64_t round) {
  return DeliverAll(shard, PeerId::Worker(rank),
                    {PullFrame(job, PeerId::Worker(rank), FrameKind::kPull,
                               layer, 0, round)});
}

TEST(ShardRestoreTest, NewJobLoadsNothing) {
  Shard shard(MixedJob(1, 1), 0);
  EXPECT_THAT(StartAndLoad(shard).loads, IsEmpty());
}

TEST(ShardRestoreTest, ShardWithoutChunksLoadsNothing) {
  const JobPtr job =
      EpochAfter(*TestJob(1, 2, {VectorLayer("a", 1)}), [](Job& restored) {
        restored.history.base_round = 8;
        restored.history.first_step = 9;
        restored.workers = {{0, 9}};
      });
  Shard shard(job, 1);
  EXPECT_THAT(StartAndLoad(shard).loads, IsEmpty());
}

TEST(ShardRestoreTest, LoadsAllChunksWithTheirState) {
  const JobPtr job = RestoredJob();
  Shard shard(job, 0);
  const Effects started = StartAndLoad(shard);
  ASSERT_THAT(started.loads, SizeIs(1));
  const LoadCheckpoint& load = started.loads[0];
  EXPECT_EQ(load.round, 8);
  ASSERT_THAT(load.values, SizeIs(2));
  for (const ChunkValues& values : load.values) {
    EXPECT_EQ(values.offset, 0);
    EXPECT_EQ(values.length, values.layer == 0 ? 1 : kOwned);
    EXPECT_EQ(values.parameters.float_count(), values.length);
    EXPECT_EQ(values.state.float_count(), values.length);
  }
  EXPECT_EQ(FloatsOf(shard.chunk(0, 0).held().parameters), OnDisk(0, 0, 1));
  EXPECT_EQ(shard.closed_round(), 8);
}

TEST(ShardRestoreTest, PullsOfTheBaseRoundAreAnsweredAtOnce) {
  const JobPtr job = RestoredJob();
  Shard shard(job, 0);
  StartAndLoad(shard);
  for (const int rank : {5, 4}) {
    const auto a = Pull(shard, *job, rank, 0, 8).sent;
    // The server or worker that updates a layer needs its state; here it is the
    // shard.
    ASSERT_THAT(a, SizeIs(1));
    EXPECT_EQ(a[0].to, PeerId::Worker(rank));
    EXPECT_EQ(ValuesIn(a, FrameKind::kResult, 0, 0, 8, 1), OnDisk(0, 0, 1));
    const auto fc = Pull(shard, *job, rank, 1, 8).sent;
    ASSERT_THAT(fc, SizeIs(2));
    EXPECT_EQ(ValuesIn(fc, FrameKind::kResult, 1, 0, 8, kOwned),
              OnDisk(1, 0, kOwned));
    EXPECT_EQ(ValuesIn(fc, FrameKind::kResult, 1, 0, 8, kOwned, /*part=*/1),
              OnDisk(1, 1, kOwned));
  }
}

TEST(ShardRestoreTest, CallersStateComesInAsManyParts) {
  JobOptions options = Momentum(0);
  options.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr job = RestoredJob(options, /*state_arrays=*/3);
  Shard shard(job, 0);
  StartAndLoad(shard);
  const auto sent = Pull(shard, *job, 4, 0, 8).sent;
  ASSERT_THAT(sent, SizeIs(4));
  for (const int part : {0, 1, 2, 3}) {
    EXPECT_EQ(ValuesIn(sent, FrameKind::kResult, 0, 0, 8, 1,
                       static_cast<uint8_t>(part)),
              OnDisk(0, part, 1));
  }
  // Rounds go on with averages, which have no state.
  Contribute(shard, *job, 4, 0, 9, {1});
  const auto closed = Contribute(shard, *job, 5, 0, 9, {3}).sent;
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(ValuesIn(closed, FrameKind::kResult, 0, 0, 9, 1), ElementsAre(2));
}

TEST(ShardRestoreTest, RoundsGoOnAfterTheBaseRound) {
  const JobPtr job = RestoredJob();
  Shard shard(job, 0);
  StartAndLoad(shard);
  const float parameter = OnDisk(0, 0, 1)[0];
  const float velocity = OnDisk(0, 1, 1)[0] / 2 + 3;
  EXPECT_THAT(Contribute(shard, *job, 4, 0, 9, {2}).sent, IsEmpty());
  const Effects closed = Contribute(shard, *job, 5, 0, 9, {4});
  EXPECT_THAT(ValuesIn(closed.sent, FrameKind::kResult, 0, 0, 9, 1),
              ElementsAre(parameter - velocity));
  EXPECT_EQ(shard.closed_round(), 9);
  // Round 9 is of a checkpoint: with what the first worker owns.
  DeliverAll(shard, PeerId::Worker(4),
             FramesOf(*job, PeerId::Worker(4), FrameKind::kOwned, 1, 0, 9,
                      IntegerValues(kOwned, 1), 0));
  const Effects complete =
      DeliverAll(shard, PeerId::Worker(4),
                 FramesOf(*job, PeerId::Worker(4), FrameKind::kOwned, 1, 0, 9,
                          IntegerValues(kOwned, 2), 1));
  ASSERT_THAT(complete.saves, SizeIs(1));
  EXPECT_THAT(FloatsOf(complete.saves[0].values[0].state),
              ElementsAre(velocity));
}

TEST(ShardRestoreTest, NoWorkerGivesInitialParameters) {
  const JobPtr job = RestoredJob();
  Shard shard(job, 0);
  StartAndLoad(shard);
  for (const Frame& frame : ContributionOf(*job, 4, 0, kInitialRound, {77})) {
    const auto landing = shard.OnHeader(PeerId::Worker(4), frame.header);
    ASSERT_TRUE(landing.ok()) << landing.status();
    EXPECT_EQ(landing->kind, Landing::Kind::kDiscard);
  }
}

}  // namespace
}  // namespace nereus
