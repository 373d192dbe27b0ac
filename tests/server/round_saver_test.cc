#include "server/shard/round_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr PeerId kWorker = {Role::kWorker, 0};
constexpr int64_t kOwned = kFrameElementsMax + 2;  // Two frames.

// Two chunks that the shard updates, and a chunk that workers own. Every round
// is saved.
JobPtr SavingJob() {
  JobOptions options;
  options.checkpoint_every = 1;
  return TestJob(1, 1,
                 {VectorLayer("a", 3), VectorLayer("b", 2),
                  FactorLayer("fc", 2, kOwned / 2, false, 1)},
                 options, Scheme::kFactor);
}

class RoundSaverTest : public testing::Test {
 protected:
  // Returns true if this chunk completed the save of `round`.
  bool Collect(int index, int64_t round, const Buffer& parameters,
               const Buffer& state) {
    HeldChunk held = HeldAt(index);
    held.parameters = parameters;
    held.state = state;
    Outbox out;
    saver_.Collect(index, round, held, out);
    return IsSaved(round, out);
  }
  bool Collect(int index, int64_t round) {
    const int64_t elements = HeldAt(index).chunk.length;
    return Collect(index, round, FloatBuffer(IntegerValues(elements, round)),
                   FloatBuffer(IntegerValues(elements, round + 50)));
  }

  // Returns true if this frame of chunk 2 completed the save of `round`.
  bool AddFrame(int64_t round, int part, int64_t index) {
    const Frame frame = OwnedFrames(round, part)[index];
    Outbox out;
    saver_.OnOwnedFrame(2, frame, out);
    return IsSaved(round, out);
  }
  bool AddFrames(int64_t round) {
    bool saved = false;
    for (const int part : {0, 1}) {
      for (const int64_t frame : {0, 1}) saved = AddFrame(round, part, frame);
    }
    return saved;
  }
  // Returns true if a frame of chunk 2 would be discarded.
  bool Discards(int64_t round, int part, int64_t index) {
    const auto landing = saver_.OnOwnedHeader(
        2, HeldAt(2), OwnedFrames(round, part)[index].header, /*position=*/0);
    EXPECT_TRUE(landing.ok()) << landing.status();
    return landing.ok() && landing->kind == Landing::Kind::kDiscard;
  }

  // Values of chunk 2, which differ by round and part.
  static std::vector<float> Owned(int64_t round, int part) {
    return IntegerValues(kOwned, round * 10 + part);
  }
  std::vector<Frame> OwnedFrames(int64_t round, int part) const {
    return FramesOf(*epoch_.job, kWorker, FrameKind::kOwned, 2, 0, round,
                    Owned(round, part), static_cast<uint8_t>(part));
  }
  HeldChunk HeldAt(int index) const {
    HeldChunk held;
    held.chunk = epoch_.job->placement.chunks()[index];
    return held;
  }

  bool IsSaved(int64_t round, Outbox& out) {
    const std::vector<SaveCheckpoint> saves = Carry(out).saves;
    if (saves.empty()) return false;
    saved_ = saves[0];
    EXPECT_EQ(saved_->round, round);
    return true;
  }

  ShardEpoch epoch_{SavingJob(), 0, PeerId::Shard(0), {}, false};
  RoundSaver saver_{&epoch_};
  std::optional<SaveCheckpoint> saved_;
};

TEST_F(RoundSaverTest, RoundIsSavedWithItsLastChunkInAnyOrder) {
  EXPECT_FALSE(Collect(1, 4));
  EXPECT_FALSE(AddFrames(4));
  EXPECT_TRUE(Collect(0, 4));
  EXPECT_FALSE(Collect(0, 5));
  EXPECT_FALSE(Collect(1, 5));
  EXPECT_TRUE(AddFrames(5));
}

TEST_F(RoundSaverTest, ValuesOfTheShardAreKeptByReference) {
  const Buffer parameters = FloatBuffer({1, 2, 3});
  const Buffer state = FloatBuffer({4, 5, 6});
  Collect(0, 4, parameters, state);
  EXPECT_FALSE(parameters.unique());
  Collect(1, 4);
  AddFrames(4);
  EXPECT_EQ(saved_->values[0].parameters.data(), parameters.data());
  EXPECT_EQ(saved_->values[0].state.data(), state.data());
  // The saver keeps nothing of a saved round.
  saved_.reset();
  EXPECT_TRUE(parameters.unique());
  EXPECT_TRUE(state.unique());
  EXPECT_EQ(saver_.held_bytes(), 0);
}

TEST_F(RoundSaverTest, FramesCountOnceInAnyOrder) {
  Collect(0, 4);
  Collect(1, 4);
  for (const auto& [part, frame] :
       std::vector<std::pair<int, int64_t>>{{1, 1}, {0, 0}, {1, 0}}) {
    EXPECT_FALSE(Discards(4, part, frame));
    EXPECT_FALSE(AddFrame(4, part, frame));
    EXPECT_TRUE(Discards(4, part, frame));
  }
  EXPECT_FALSE(Discards(4, 0, 1));
  EXPECT_TRUE(AddFrame(4, 0, 1));
  EXPECT_EQ(FloatsOf(saved_->values[2].parameters), Owned(4, 0));
  EXPECT_EQ(FloatsOf(saved_->values[2].state), Owned(4, 1));
  // The round is over.
  EXPECT_TRUE(Discards(4, 0, 1));
}

TEST_F(RoundSaverTest, ChunkIsTakenOnce) {
  const Buffer first = FloatBuffer({1, 2, 3});
  Collect(0, 4, first, Buffer());
  Collect(0, 4, FloatBuffer({9, 9, 9}), Buffer());
  Collect(1, 4);
  EXPECT_TRUE(AddFrames(4));
  EXPECT_EQ(saved_->values[0].parameters.data(), first.data());
}

TEST_F(RoundSaverTest, ThirdRoundEndsTheOldest) {
  const Buffer oldest = FloatBuffer({1, 2, 3});
  Collect(0, 4, oldest, Buffer());
  Collect(0, 6);
  EXPECT_FALSE(oldest.unique());
  Collect(0, 8);
  EXPECT_TRUE(oldest.unique());
  // Late values of the oldest round are of no use.
  EXPECT_TRUE(Discards(4, 0, 0));
  EXPECT_FALSE(Collect(1, 4));
  EXPECT_FALSE(Collect(0, 4, oldest, Buffer()));
  EXPECT_TRUE(oldest.unique());
  // The other two rounds go on.
  Collect(1, 6);
  EXPECT_TRUE(AddFrames(6));
  Collect(1, 8);
  EXPECT_TRUE(AddFrames(8));
}

TEST_F(RoundSaverTest, SavedRoundEndsTheOlderOne) {
  const Buffer older = FloatBuffer({1, 2, 3});
  Collect(0, 4, older, Buffer());
  Collect(0, 6);
  Collect(1, 6);
  EXPECT_TRUE(AddFrames(6));
  EXPECT_TRUE(older.unique());
  EXPECT_TRUE(Discards(4, 0, 0));
  EXPECT_FALSE(Collect(1, 4));
}

TEST_F(RoundSaverTest, LateOldRoundDoesNotEndTwoNewerRounds) {
  Collect(0, 6);
  Collect(0, 8);
  const Buffer late = FloatBuffer({1, 2, 3});
  EXPECT_FALSE(Collect(0, 4, late, Buffer()));
  EXPECT_TRUE(late.unique());
  Collect(1, 6);
  EXPECT_TRUE(AddFrames(6));
}

TEST(RoundSaverStateTest, WithoutOptimizerStateThereIsOnePart) {
  JobOptions options;
  options.checkpoint_every = 1;
  options.optimizer_place = OptimizerPlace::kWorker;
  const ShardEpoch epoch{TestJob(1, 1, {VectorLayer("a", 2)}, options),
                         0,
                         PeerId::Shard(0),
                         {},
                         false};
  ASSERT_EQ(epoch.job->state_arrays, 0);
  HeldChunk held;
  held.chunk = epoch.job->placement.chunks()[0];
  RoundSaver saver(&epoch);
  const auto frame_of = [&](uint8_t part) {
    return FramesOf(*epoch.job, kWorker, FrameKind::kOwned, 0, 0, 4, {1, 2},
                    part)[0];
  };
  EXPECT_TRUE(saver.OnOwnedHeader(0, held, frame_of(0).header, 0).ok());
  EXPECT_FALSE(saver.OnOwnedHeader(0, held, frame_of(1).header, 0).ok());
  Outbox out;
  const Frame frame = frame_of(0);
  saver.OnOwnedFrame(0, frame, out);
  const std::vector<SaveCheckpoint> saves = Carry(out).saves;
  ASSERT_THAT(saves, SizeIs(1));
  EXPECT_THAT(FloatsOf(saves[0].values[0].parameters), ElementsAre(1, 2));
  EXPECT_THAT(FloatsOf(saves[0].values[0].state), IsEmpty());
}

}  // namespace
}  // namespace nereus
