#include "server/shard/checkpoint_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kOwned = kFrameElementsMax + 2;  // Two frames.

// Two chunks that rounds update here, and one that workers own.
std::vector<Chunk> SomeChunks() {
  return {{0, 0, 0, 3, 0}, {0, 1, 3, 2, 0}, {1, 0, 0, kOwned, 0}};
}

class CheckpointCollectorTest : public testing::Test {
 protected:
  // Whether the checkpoint of `round` was completed by that; no other one.
  bool Add(int slot, int64_t round, const Buffer& parameters,
           const Buffer& state) {
    return Saved(collector_.Add(slot, round, parameters, state), round);
  }
  bool Add(int slot, int64_t round) {
    const int64_t elements = SomeChunks()[slot].length;
    return Add(slot, round, FloatBuffer(IntegerValues(elements, round)),
               FloatBuffer(IntegerValues(elements, round + 50)));
  }
  // The frame of slot 2, whose values differ by part.
  bool AddFrame(int64_t round, int part, int64_t frame) {
    const std::vector<float> values = Owned(round, part);
    const auto begin = values.begin() + frame * kFrameElementsMax;
    const Buffer scratch =
        FloatBuffer({begin, begin + FrameGrid(kOwned).Length(frame)});
    Outbox out;
    const auto collected =
        collector_.AddFrame(2, round, part, frame, scratch, out);
    Carry(out);
    return Saved(collected, round);
  }
  bool AddFrames(int64_t round) {
    bool saved = false;
    for (const int part : {0, 1}) {
      for (const int64_t frame : {0, 1}) saved = AddFrame(round, part, frame);
    }
    return saved;
  }
  static std::vector<float> Owned(int64_t round, int part) {
    return IntegerValues(kOwned, round * 10 + part);
  }

  bool Saved(const std::optional<CheckpointCollector::Collected>& collected,
             int64_t round) {
    if (!collected.has_value()) return false;
    saved_ = *collected;
    EXPECT_EQ(saved_.round, round);
    return true;
  }

  CheckpointCollector collector_{SomeChunks(), /*state_arrays=*/1};
  CheckpointCollector::Collected saved_;
};

TEST_F(CheckpointCollectorTest, IsCompleteWithTheLastChunkWhicheverThatIs) {
  EXPECT_FALSE(Add(1, 4));
  EXPECT_FALSE(AddFrames(4));
  EXPECT_TRUE(Add(0, 4));
  EXPECT_FALSE(Add(0, 5));
  EXPECT_FALSE(Add(1, 5));
  EXPECT_TRUE(AddFrames(5));
}

TEST_F(CheckpointCollectorTest, HasTheChunksInTheirOrder) {
  AddFrames(4);
  Add(1, 4);
  ASSERT_TRUE(Add(0, 4));
  ASSERT_THAT(saved_.values, SizeIs(3));
  for (int slot = 0; slot < 3; ++slot) {
    const ChunkValues& values = saved_.values[slot];
    const Chunk chunk = SomeChunks()[slot];
    EXPECT_EQ(values.layer, chunk.layer);
    EXPECT_EQ(values.offset, chunk.offset);
    EXPECT_EQ(values.length, chunk.length);
  }
  EXPECT_EQ(FloatsOf(saved_.values[0].parameters), IntegerValues(3, 4));
  EXPECT_EQ(FloatsOf(saved_.values[0].state), IntegerValues(3, 54));
  EXPECT_EQ(FloatsOf(saved_.values[2].parameters), Owned(4, 0));
  EXPECT_EQ(FloatsOf(saved_.values[2].state), Owned(4, 1));
}

TEST_F(CheckpointCollectorTest, KeepsValuesByReference) {
  const Buffer parameters = FloatBuffer({1, 2, 3});
  const Buffer state = FloatBuffer({4, 5, 6});
  Add(0, 4, parameters, state);
  EXPECT_FALSE(parameters.unique());
  Add(1, 4);
  AddFrames(4);
  EXPECT_EQ(saved_.values[0].parameters.data(), parameters.data());
  EXPECT_EQ(saved_.values[0].state.data(), state.data());
  // Nothing is kept of what was handed out.
  saved_ = {};
  EXPECT_TRUE(parameters.unique());
  EXPECT_TRUE(state.unique());
}

TEST_F(CheckpointCollectorTest, FramesComeInAnyOrderAndCountOnce) {
  Add(0, 4);
  Add(1, 4);
  for (const auto& [part, frame] :
       std::vector<std::pair<int, int64_t>>{{1, 1}, {0, 0}, {1, 0}}) {
    EXPECT_FALSE(collector_.Has(2, 4, part, frame));
    EXPECT_FALSE(AddFrame(4, part, frame));
    EXPECT_TRUE(collector_.Has(2, 4, part, frame));
  }
  EXPECT_FALSE(collector_.Has(2, 4, 0, 1));
  EXPECT_TRUE(AddFrame(4, 0, 1));
  EXPECT_EQ(FloatsOf(saved_.values[2].parameters), Owned(4, 0));
  EXPECT_EQ(FloatsOf(saved_.values[2].state), Owned(4, 1));
  // It is over.
  EXPECT_TRUE(collector_.Has(2, 4, 0, 1));
}

TEST_F(CheckpointCollectorTest, AChunkIsTakenOnce) {
  const Buffer first = FloatBuffer({1, 2, 3});
  Add(0, 4, first, Buffer());
  Add(0, 4, FloatBuffer({9, 9, 9}), Buffer());
  Add(1, 4);
  EXPECT_TRUE(AddFrames(4));
  EXPECT_EQ(saved_.values[0].parameters.data(), first.data());
}

TEST_F(CheckpointCollectorTest, ARoundMayBeginBeforeTheOneBeforeItIsComplete) {
  Add(0, 4);
  Add(0, 6);
  AddFrame(6, 0, 0);
  EXPECT_FALSE(collector_.Has(2, 4, 0, 0));
  EXPECT_TRUE(collector_.Has(2, 6, 0, 0));
  Add(1, 4);
  EXPECT_TRUE(AddFrames(4));
  EXPECT_EQ(FloatsOf(saved_.values[0].parameters), IntegerValues(3, 4));
  Add(1, 6);
  AddFrame(6, 0, 1);
  AddFrame(6, 1, 0);
  EXPECT_TRUE(AddFrame(6, 1, 1));
  EXPECT_EQ(FloatsOf(saved_.values[0].parameters), IntegerValues(3, 6));
}

TEST_F(CheckpointCollectorTest, TheThirdOneEndsTheOldest) {
  const Buffer oldest = FloatBuffer({1, 2, 3});
  Add(0, 4, oldest, Buffer());
  Add(0, 6);
  EXPECT_FALSE(oldest.unique());
  Add(0, 8);
  EXPECT_TRUE(oldest.unique());
  // What comes late for it is of no use.
  EXPECT_TRUE(collector_.Has(2, 4, 0, 0));
  EXPECT_FALSE(Add(1, 4));
  EXPECT_FALSE(Add(0, 4, oldest, Buffer()));
  EXPECT_TRUE(oldest.unique());
  // The other two are as they were.
  Add(1, 6);
  EXPECT_TRUE(AddFrames(6));
  Add(1, 8);
  EXPECT_TRUE(AddFrames(8));
}

TEST_F(CheckpointCollectorTest, ACompleteOneEndsTheOlder) {
  const Buffer older = FloatBuffer({1, 2, 3});
  Add(0, 4, older, Buffer());
  Add(0, 6);
  Add(1, 6);
  EXPECT_TRUE(AddFrames(6));
  EXPECT_TRUE(older.unique());
  EXPECT_TRUE(collector_.Has(2, 4, 0, 0));
  EXPECT_FALSE(Add(1, 4));
}

// The oldest of three is the one that comes last.
TEST_F(CheckpointCollectorTest, AnOldRoundDoesNotEndTwoNewerOnes) {
  Add(0, 6);
  Add(0, 8);
  const Buffer late = FloatBuffer({1, 2, 3});
  EXPECT_FALSE(Add(0, 4, late, Buffer()));
  EXPECT_TRUE(late.unique());
  Add(1, 6);
  EXPECT_TRUE(AddFrames(6));
}

TEST(CheckpointCollectorStateTest, WithoutStateThereIsOnePart) {
  CheckpointCollector collector({{0, 0, 0, 2, 0}}, /*state_arrays=*/0);
  EXPECT_EQ(collector.parts(), 1);
  Outbox out;
  const auto collected =
      collector.AddFrame(0, 0, 0, 0, FloatBuffer({1, 2}), out);
  Carry(out);
  ASSERT_TRUE(collected.has_value());
  EXPECT_THAT(FloatsOf(collected->values[0].parameters), ElementsAre(1, 2));
  EXPECT_THAT(FloatsOf(collected->values[0].state), IsEmpty());
}

}  // namespace
}  // namespace nereus
