#include "server/shard/chunk_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/machine_harness.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::IsEmpty;

struct Piece {
  int part = 0;
  int64_t frame = 0;
};

std::vector<Piece> PiecesOf(const ChunkCopy& copy, int64_t elements) {
  std::vector<Piece> pieces;
  for (int part = 0; part < copy.parts(); ++part) {
    for (int64_t frame = 0; frame < FrameCount(elements); ++frame) {
      pieces.push_back({part, frame});
    }
  }
  return pieces;
}

Buffer SliceOf(const std::vector<float>& values, int64_t frame) {
  const auto elements = std::ssize(values);
  return FloatBuffer(values).Slice(frame * kFramePayloadBytesMax,
                                   FrameGrid(elements).Length(frame) * 4);
}

TEST(ChunkCopyTest, NewCopyHasNotBegun) {
  const ChunkCopy copy;
  EXPECT_FALSE(copy.begun());
  EXPECT_FALSE(copy.complete());
  EXPECT_EQ(copy.parameters().bytes(), 0);
}

struct Shape {
  int64_t elements = 0;
  int state_arrays = 0;
  bool has_average = false;
};

class ChunkCopyShapeTest : public testing::TestWithParam<Shape> {};

TEST_P(ChunkCopyShapeTest, FramesInAnyOrderCompleteTheCopy) {
  const Shape shape = GetParam();
  const uint64_t seed = TestSeeds(1).front();
  SCOPED_TRACE(ReplayHint(seed));
  std::mt19937_64 random(seed);
  ChunkCopy copy(12, shape.elements, shape.state_arrays, shape.has_average);
  EXPECT_TRUE(copy.begun());
  EXPECT_EQ(copy.round(), 12);
  ASSERT_EQ(copy.parts(), 1 + shape.state_arrays + (shape.has_average ? 1 : 0));
  std::vector<Piece> pieces = PiecesOf(copy, shape.elements);
  std::shuffle(pieces.begin(), pieces.end(), random);
  std::vector<float> state;
  for (const Piece& piece : pieces) {
    EXPECT_FALSE(copy.complete());
    EXPECT_FALSE(copy.Has(piece.part, piece.frame));
    Outbox out;
    copy.Add(piece.part, piece.frame,
             SliceOf(IntegerValues(shape.elements, piece.part), piece.frame),
             out);
    EXPECT_THAT(Carry(out).sent, IsEmpty());
    EXPECT_TRUE(copy.Has(piece.part, piece.frame));
  }
  EXPECT_TRUE(copy.complete());
  EXPECT_EQ(FloatsOf(copy.parameters()), IntegerValues(shape.elements, 0));
  for (int part = 1; part <= shape.state_arrays; ++part) {
    const auto values = IntegerValues(shape.elements, part);
    state.insert(state.end(), values.begin(), values.end());
  }
  EXPECT_EQ(FloatsOf(copy.state()), state);
  EXPECT_EQ(FloatsOf(copy.average()),
            shape.has_average
                ? IntegerValues(shape.elements, shape.state_arrays + 1)
                : std::vector<float>());
}

INSTANTIATE_TEST_SUITE_P(
    Table, ChunkCopyShapeTest,
    testing::Values(Shape{1, 0, false}, Shape{1, 0, true}, Shape{7, 2, true},
                    Shape{kFrameElementsMax - 1, 1, false},
                    Shape{kFrameElementsMax, 1, true},
                    Shape{kFrameElementsMax + 1, 2, false},
                    Shape{2 * kFrameElementsMax + 7, 8, true}));

TEST(ChunkCopyTest, CopyOfSizesHasSizesOnly) {
  ChunkCopy copy(0, 7, 2, true);
  for (const Piece& piece : PiecesOf(copy, 7)) {
    Outbox out;
    copy.Add(piece.part, piece.frame, Buffer::SizeOnly(28), out);
    Carry(out);
  }
  EXPECT_TRUE(copy.complete());
  EXPECT_EQ(copy.parameters().data(), nullptr);
  EXPECT_EQ(copy.parameters().bytes(), 28);
  EXPECT_EQ(copy.state().bytes(), 56);
  EXPECT_EQ(copy.average().bytes(), 28);
}

// The payload is a scratch.
TEST(ChunkCopyTest, KeepsNoPayload) {
  ChunkCopy copy(0, 2, 0, false);
  const Buffer payload = FloatBuffer({1, 2});
  Outbox out;
  copy.Add(kValuesPart, 0, payload, out);
  Carry(out);
  EXPECT_TRUE(payload.unique());
  EXPECT_NE(copy.parameters().data(), payload.data());
}

TEST(ChunkCopyDeathTest, FrameIsAddedOnce) {
  ChunkCopy copy(0, 2, 0, false);
  Outbox out;
  copy.Add(kValuesPart, 0, FloatBuffer({1, 2}), out);
  EXPECT_DEATH(copy.Add(kValuesPart, 0, FloatBuffer({1, 2}), out),
               "part 0 frame 0");
}

}  // namespace
}  // namespace nereus
