#include "server/shard/full_round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/frame.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

FrameHeader HeaderOf(int64_t frame) {
  FrameHeader header;
  header.kind = FrameKind::kContribution;
  header.offset = static_cast<uint32_t>(frame * kFrameElementsMax);
  return header;
}

// Adds one frame of `values`, a contributor's whole chunk, as a driver does:
// from a scratch that is spoilt afterwards.
void AddFrame(FullRound& round, int contributor, int64_t frame,
              const std::vector<float>& values) {
  const int64_t begin = frame * kFrameElementsMax;
  const auto elements = std::ssize(values);
  const int64_t length = FrameGrid(elements).Length(frame);
  const Buffer scratch =
      FloatBuffer({values.begin() + begin, values.begin() + begin + length});
  Outbox out;
  round.Add(contributor, HeaderOf(frame), Addend(scratch), out);
  Carry(out);
  std::fill_n(scratch.floats(), length,
              std::numeric_limits<float>::quiet_NaN());
}

void AddAll(FullRound& round, int contributor,
            const std::vector<float>& values) {
  const auto elements = std::ssize(values);
  for (int64_t frame = 0; frame < FrameCount(elements); ++frame) {
    AddFrame(round, contributor, frame, values);
  }
}

class FullRoundTest : public testing::TestWithParam<SumOrder> {};

TEST_P(FullRoundTest, SumsAllContributionsWhateverTheLength) {
  for (const int64_t elements : {1, 2, 65535, 65536, 65537, 131073}) {
    FullRound round(3, FrameGrid(elements), GetParam());
    std::vector<float> expected(elements, 0.0f);
    for (const int contributor : {2, 0, 1}) {
      EXPECT_FALSE(round.complete());
      const auto values = IntegerValues(elements, contributor);
      AddAll(round, contributor, values);
      for (int64_t i = 0; i < elements; ++i) expected[i] += values[i];
    }
    ASSERT_TRUE(round.complete());
    ASSERT_EQ(round.sum().bytes(), elements * 4);
    ASSERT_EQ(FloatsOf(round.sum()), expected) << elements;
  }
}

TEST_P(FullRoundTest, SingleContributionIsTheSum) {
  FullRound round(1, FrameGrid(3), GetParam());
  AddAll(round, 0, {1, -0.0f, 3});
  ASSERT_TRUE(round.complete());
  EXPECT_EQ(FloatsOf(round.sum()), (std::vector<float>{1, -0.0f, 3}));
}

TEST_P(FullRoundTest, CountsEachFrameOfEachContributor) {
  FullRound round(2, FrameGrid(65537), GetParam());
  const auto values = IntegerValues(65537, 0);
  for (const auto& [contributor, frame] :
       std::vector<std::pair<int, int64_t>>{{0, 1}, {1, 0}, {1, 1}, {0, 0}}) {
    EXPECT_FALSE(round.complete());
    EXPECT_FALSE(round.Has(contributor, frame));
    AddFrame(round, contributor, frame, values);
    EXPECT_TRUE(round.Has(contributor, frame));
  }
  EXPECT_TRUE(round.complete());
}

TEST_P(FullRoundTest, NamesTheMissingContributors) {
  FullRound round(4, FrameGrid(65537), GetParam());
  const auto values = IntegerValues(65537, 0);
  EXPECT_THAT(round.MissingContributors(), ElementsAre(0, 1, 2, 3));
  AddAll(round, 2, values);
  EXPECT_THAT(round.MissingContributors(), ElementsAre(0, 1, 3));
  AddFrame(round, 0, 1, values);  // Half of its contribution.
  EXPECT_THAT(round.MissingContributors(), ElementsAre(0, 1, 3));
  AddFrame(round, 0, 0, values);
  AddAll(round, 3, values);
  EXPECT_THAT(round.MissingContributors(), ElementsAre(1));
  AddAll(round, 1, values);
  EXPECT_THAT(round.MissingContributors(), IsEmpty());
}

TEST_P(FullRoundTest, ReopenedRoundStartsOverInTheSameMemory) {
  FullRound round(2, FrameGrid(5), GetParam());
  AddAll(round, 0, {1, 1, 1, 1, 1});
  AddAll(round, 1, {2, 2, 2, 2, 2});
  const float* const memory = round.sum().floats();
  round.Reopen(2, /*sparse=*/false);
  EXPECT_FALSE(round.complete());
  EXPECT_FALSE(round.Has(0, 0));
  EXPECT_THAT(round.MissingContributors(), ElementsAre(0, 1));
  AddAll(round, 1, {10, 10, 10, 10, 10});
  AddAll(round, 0, {20, 20, 20, 20, 20});
  EXPECT_EQ(round.sum().floats(), memory);
  EXPECT_EQ(FloatsOf(round.sum()), std::vector<float>(5, 30.0f));
}

TEST_P(FullRoundTest, ReaderOfTheOldSumKeepsIt) {
  FullRound round(2, FrameGrid(2), GetParam());
  AddAll(round, 0, {1, 2});
  AddAll(round, 1, {10, 20});
  {
    const Buffer reader = round.sum().Slice(4, 4);
    round.Reopen(2, /*sparse=*/false);
    AddAll(round, 0, {5, 5});
    AddAll(round, 1, {6, 6});
    EXPECT_EQ(FloatsOf(reader), std::vector<float>{22});
    EXPECT_EQ(FloatsOf(round.sum()), (std::vector<float>{11, 11}));
  }
  // The reader is gone: the memory stays where it is now.
  const float* const memory = round.sum().floats();
  round.Reopen(2, /*sparse=*/false);
  AddAll(round, 0, {1, 1});
  AddAll(round, 1, {1, 1});
  EXPECT_EQ(round.sum().floats(), memory);
}

// A reader that comes and goes within a round, between frames, must not lose
// what is in already.
TEST_P(FullRoundTest, ReaderOfAPartialRoundDoesNotDisturbIt) {
  FullRound round(2, FrameGrid(2), GetParam());
  AddAll(round, 0, {1, 2});
  const Buffer reader = round.sum();
  AddAll(round, 1, {10, 20});
  EXPECT_EQ(FloatsOf(round.sum()), (std::vector<float>{11, 22}));
}

TEST_P(FullRoundTest, SumIsHandedOverInExchangeForMemory) {
  FullRound round(1, FrameGrid(2), GetParam());
  AddAll(round, 0, {1, 2});
  const float* const first_memory = round.sum().floats();
  Buffer first = round.ExchangeSum(Buffer());
  EXPECT_EQ(first.floats(), first_memory);
  EXPECT_TRUE(first.unique());

  // Without memory it takes its own; with memory it uses that.
  round.Reopen(1, /*sparse=*/false);
  AddAll(round, 0, {3, 4});
  EXPECT_EQ(FloatsOf(first), (std::vector<float>{1, 2}));
  const Buffer second = round.ExchangeSum(std::move(first));
  EXPECT_EQ(FloatsOf(second), (std::vector<float>{3, 4}));
  round.Reopen(1, /*sparse=*/false);
  AddAll(round, 0, {5, 6});
  EXPECT_EQ(round.sum().floats(), first_memory);
  EXPECT_EQ(FloatsOf(round.sum()), (std::vector<float>{5, 6}));
  EXPECT_EQ(FloatsOf(second), (std::vector<float>{3, 4}));
}

TEST_P(FullRoundTest, SizesWithoutValuesStaySizes) {
  FullRound round(2, FrameGrid(65537), GetParam());
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const int contributor : {1, 0}) {
      for (const int64_t frame : {1, 0}) {
        Outbox out;
        round.Add(contributor, HeaderOf(frame),
                  Addend(Buffer::SizeOnly(FrameGrid(65537).Length(frame) * 4)),
                  out);
        Carry(out);
      }
    }
    EXPECT_TRUE(round.complete());
    EXPECT_EQ(round.sum().data(), nullptr);
    EXPECT_EQ(round.sum().bytes(), 65537 * 4);
    round.Reopen(2, /*sparse=*/false);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, FullRoundTest,
                         testing::Values(SumOrder::kArrival, SumOrder::kRank),
                         [](const auto& info) {
                           return std::string(info.param == SumOrder::kRank
                                                  ? "ByRank"
                                                  : "ByArrival");
                         });

// In float32 2^24 + 1 is 2^24, so these three sum to 1 or to 0.
const std::vector<std::vector<float>>& OrderTells() {
  static const auto& values =
      *new std::vector<std::vector<float>>{{0x1.0p24f}, {1.0f}, {-0x1.0p24f}};
  return values;
}

float SumIn(SumOrder order, const std::vector<int>& arrivals) {
  FullRound round(3, FrameGrid(1), order);
  for (const int contributor : arrivals) {
    AddAll(round, contributor, OrderTells()[contributor]);
  }
  return round.sum().floats()[0];
}

TEST(SumOrderTest, SumByArrivalDependsOnTheOrderOfArrival) {
  EXPECT_EQ(SumIn(SumOrder::kArrival, {0, 1, 2}), 0.0f);
  EXPECT_EQ(SumIn(SumOrder::kArrival, {0, 2, 1}), 1.0f);
}

TEST(SumOrderTest, SumByRankHasTheSameBitsForAnyOrderOfArrival) {
  std::vector<int> arrivals = {0, 1, 2};
  do {
    EXPECT_EQ(SumIn(SumOrder::kRank, arrivals), 0.0f)
        << testing::PrintToString(arrivals);
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
}

TEST(FullRoundDeathTest, MisuseDies) {
  FullRound round(2, FrameGrid(1), SumOrder::kArrival);
  AddAll(round, 1, {1});
  EXPECT_DEATH(AddAll(round, 1, {1}), "contributor 1 frame 0");
  EXPECT_DEATH(FullRound(0, FrameGrid(1), SumOrder::kArrival),
               "0 contributors");
  EXPECT_DEATH(FullRound(1, FrameGrid(0), SumOrder::kArrival), "0 elements");
  EXPECT_DEATH(round.Reopen(0, /*sparse=*/false), "0 contributors");
}

}  // namespace
}  // namespace nereus
