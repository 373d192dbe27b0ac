#include "common/protocol/frame_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::ElementsAre;

// Adds values as a driver does: from a scratch that is spoilt afterwards.
void AddValues(FrameSums& sums, int contributor, int64_t frame,
               const Buffer& place, const std::vector<float>& values,
               float factor = 1.0f) {
  const Buffer scratch = FloatBuffer(values);
  Outbox out;
  sums.Add(contributor, frame, place, Addend(scratch), factor, out);
  Carry(out);
  std::fill_n(scratch.floats(), values.size(),
              std::numeric_limits<float>::quiet_NaN());
}

class FrameSumsTest : public testing::TestWithParam<SumOrder> {
 protected:
  FrameSums sums_ = FrameSums(GetParam());
};

TEST_P(FrameSumsTest, FrameIsTheSumOfAllContributorsInAnyOrder) {
  std::vector<int> arrivals = {0, 1, 2};
  do {
    const Buffer place = FloatBuffer({1000, 1000});  // Old values do not count.
    sums_.Reopen(3, 1);
    for (const int contributor : arrivals) {
      EXPECT_FALSE(sums_.Has(contributor, 0));
      EXPECT_FALSE(sums_.IsComplete(0));
      AddValues(sums_, contributor, 0, place,
                contributor == 0   ? std::vector<float>{1, 10}
                : contributor == 1 ? std::vector<float>{2, 20}
                                   : std::vector<float>{4, 40});
      EXPECT_TRUE(sums_.Has(contributor, 0));
    }
    EXPECT_TRUE(sums_.IsComplete(0));
    EXPECT_THAT(FloatsOf(place), ElementsAre(7, 70));
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
}

TEST_P(FrameSumsTest, EachFrameIsCompleteByItself) {
  const std::vector<Buffer> places = {FloatBuffer({0}), FloatBuffer({0, 0})};
  sums_.Reopen(2, 2);
  AddValues(sums_, 1, 1, places[1], {1, 2});
  AddValues(sums_, 0, 0, places[0], {5});
  AddValues(sums_, 0, 1, places[1], {10, 20});
  EXPECT_FALSE(sums_.IsComplete(0));
  EXPECT_FALSE(sums_.Has(1, 0));
  EXPECT_TRUE(sums_.IsComplete(1));
  EXPECT_THAT(FloatsOf(places[0]), ElementsAre(5));
  EXPECT_THAT(FloatsOf(places[1]), ElementsAre(11, 22));
}

// The copy keeps a negative zero, which an addition to 0 would lose.
TEST_P(FrameSumsTest, SingleContributionIsCopied) {
  const Buffer place = FloatBuffer({7});
  sums_.Reopen(1, 1);
  AddValues(sums_, 0, 0, place, {-0.0f});
  EXPECT_TRUE(sums_.IsComplete(0));
  EXPECT_TRUE(std::signbit(place.floats()[0]));
}

// The factor of a mean: values before the last ones must not be multiplied too.
TEST_P(FrameSumsTest, LastAdditionMultipliesTheSum) {
  std::vector<int> arrivals = {0, 1, 2};
  do {
    const Buffer place = FloatBuffer({0});
    sums_.Reopen(3, 1);
    for (const int contributor : arrivals) {
      AddValues(sums_, contributor, 0, place, {4}, 0.25f);
    }
    EXPECT_THAT(FloatsOf(place), ElementsAre(3))
        << testing::PrintToString(arrivals);
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
}

// The caller's own values need no copy: they are read when another contributor
// adds its values, or when it is their turn.
TEST_P(FrameSumsTest, ValuesThatStayAreNotCopied) {
  std::vector<int> arrivals = {0, 1, 2};
  do {
    for (const int staying : {0, 1, 2}) {
      const Buffer place = FloatBuffer({1000});
      const Buffer stays = FloatBuffer({7});
      sums_.Reopen(3, 1);
      for (const int contributor : arrivals) {
        if (contributor != staying) {
          AddValues(sums_, contributor, 0, place, {10}, 0.5f);
          continue;
        }
        Addend own(stays);
        own.stays = true;
        own.check = ValueCheck();
        const int64_t held = sums_.held_bytes();
        Outbox out;
        sums_.Add(contributor, 0, place, own, 0.5f, out);
        Carry(out);
        EXPECT_LE(sums_.held_bytes(), held);
      }
      EXPECT_THAT(FloatsOf(place), ElementsAre(13.5f));
      EXPECT_THAT(FloatsOf(stays), ElementsAre(7));
    }
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
}

TEST_P(FrameSumsTest, ValuesThatStayCanBeDropped) {
  for (const int staying : {0, 1}) {
    const Buffer stays = FloatBuffer({7});
    sums_.Reopen(2, 1);
    Addend own(stays);
    own.stays = true;
    Outbox out;
    sums_.Add(staying, 0, FloatBuffer({0}), own, 1.0f, out);
    own.payload = Buffer();
    EXPECT_FALSE(stays.unique());
    sums_.DropStaying();
    EXPECT_TRUE(stays.unique());
  }
}

TEST(FrameSumsCheckTest, ValuesThatStayAreCheckedWhenTheyAreAdded) {
  FrameSums sums(SumOrder::kArrival);
  sums.Reopen(2, 1);
  const Buffer place = FloatBuffer({0});
  Addend own(FloatBuffer({5}));
  own.stays = true;
  own.check = ValueCheck{.layer = 3};
  Outbox out;
  sums.Add(0, 0, place, own, 1.0f, out);
  EXPECT_TRUE(out.actions().empty());
  sums.Add(1, 0, place, Addend(FloatBuffer({6})), 1.0f, out);
  ASSERT_EQ(out.actions().size(), 2u);
  EXPECT_EQ(std::get<CheckValues>(out.actions()[0]).check.layer, 3);
  EXPECT_EQ(std::get<Accumulate>(out.actions()[1]).base.data(),
            own.payload.data());
}

TEST_P(FrameSumsTest, SizesWithoutValuesStaySizes) {
  sums_.Reopen(2, 1);
  for (const int contributor : {1, 0}) {
    Outbox out;
    sums_.Add(contributor, 0, Buffer::SizeOnly(12),
              Addend(Buffer::SizeOnly(12)), 1.0f, out);
    for (const Action& action : out.actions()) {
      EXPECT_EQ(std::get<Accumulate>(action).sum.data(), nullptr);
      EXPECT_EQ(std::get<Accumulate>(action).sum.bytes(), 12);
    }
  }
  EXPECT_TRUE(sums_.IsComplete(0));
}

INSTANTIATE_TEST_SUITE_P(Orders, FrameSumsTest,
                         testing::Values(SumOrder::kArrival, SumOrder::kRank),
                         [](const auto& info) {
                           return std::string(info.param == SumOrder::kRank
                                                  ? "ByRank"
                                                  : "ByArrival");
                         });

// In float32 2^24 + 1 is 2^24, so the sum shows the order of its additions.
float SumIn(SumOrder order, const std::vector<int>& arrivals) {
  const std::vector<float> values = {0x1.0p24f, 1.0f, -0x1.0p24f};
  const Buffer place = FloatBuffer({0});
  FrameSums sums(order);
  sums.Reopen(3, 1);
  for (const int contributor : arrivals) {
    AddValues(sums, contributor, 0, place, {values[contributor]});
  }
  return place.floats()[0];
}

TEST(FrameSumsOrderTest, RankOrderHasTheSameBitsForAnyOrderOfArrival) {
  std::vector<int> arrivals = {0, 1, 2};
  do {
    EXPECT_EQ(SumIn(SumOrder::kRank, arrivals), 0.0f)
        << testing::PrintToString(arrivals);
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
  EXPECT_EQ(SumIn(SumOrder::kArrival, {0, 2, 1}), 1.0f);
}

TEST(FrameSumsOrderTest, EarlyValuesAreHeldUntilTheirTurn) {
  const Buffer place = FloatBuffer({0, 0});
  FrameSums sums(SumOrder::kRank);
  sums.Reopen(3, 1);
  AddValues(sums, 2, 0, place, {1, 1});
  AddValues(sums, 1, 0, place, {1, 1});
  EXPECT_EQ(sums.held_bytes(), 16);
  EXPECT_TRUE(sums.Has(2, 0));
  EXPECT_THAT(FloatsOf(place), ElementsAre(0, 0));
  AddValues(sums, 0, 0, place, {1, 1});
  EXPECT_EQ(sums.held_bytes(), 0);
  EXPECT_THAT(FloatsOf(place), ElementsAre(3, 3));
}

// The driver names the worker of a NaN by the check: held values have been
// checked when they were copied, so they must not be checked again.
TEST(FrameSumsOrderTest, ValuesAreCheckedOnceWhenTheyArrive) {
  const Buffer place = FloatBuffer({0});
  FrameSums sums(SumOrder::kRank);
  sums.Reopen(2, 1);
  std::vector<int> checked;
  for (const int contributor : {1, 0}) {
    Addend addend(FloatBuffer({1}));
    addend.check = ValueCheck{0, 0, contributor, 0};
    Outbox out;
    sums.Add(contributor, 0, place, addend, 1.0f, out);
    for (const Action& action : out.actions()) {
      const auto& check = std::get<Accumulate>(action).addend.check;
      if (check.has_value()) checked.push_back(check->worker);
    }
  }
  EXPECT_THAT(checked, ElementsAre(1, 0));
}

TEST(FrameSumsDeathTest, MisuseDies) {
  const Buffer place = FloatBuffer({0});
  FrameSums sums(SumOrder::kArrival);
  sums.Reopen(2, 1);
  AddValues(sums, 1, 0, place, {1});
  EXPECT_DEATH(AddValues(sums, 1, 0, place, {1}), "contributor 1 frame 0");
  EXPECT_DEATH(sums.Reopen(0, 1), "0 contributors");
}

}  // namespace
}  // namespace nereus
