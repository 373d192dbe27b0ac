#include "common/base/log_repeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::Optional;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(LogPaceTest, LinesComeAtGrowingIntervalsUpToAMinute) {
  LogPace pace;
  std::vector<int> due;
  for (int seconds = 0; seconds <= 300; ++seconds) {
    if (pace.IsDue(absl::Seconds(seconds))) due.push_back(seconds);
  }
  EXPECT_THAT(due, ElementsAre(0, 5, 10, 20, 40, 80, 140, 200, 260));
}

TEST(LogPaceTest, FirstLineIsDueHoweverLongItHasLasted) {
  LogPace pace;
  EXPECT_TRUE(pace.IsDue(absl::Seconds(10)));
  EXPECT_FALSE(pace.IsDue(absl::Seconds(19)));
  EXPECT_TRUE(pace.IsDue(absl::Seconds(20)));
}

TEST(LogRepeatsTest, EachTextHasItsOwnPace) {
  LogRepeats repeats;
  EXPECT_THAT(repeats.Note("a", kStart), Optional(absl::ZeroDuration()));
  EXPECT_EQ(repeats.Note("a", kStart + absl::Seconds(3)), std::nullopt);
  EXPECT_THAT(repeats.Note("b", kStart + absl::Seconds(3)),
              Optional(absl::ZeroDuration()));
  EXPECT_THAT(repeats.Note("a", kStart + absl::Seconds(6)),
              Optional(absl::Seconds(6)));
  EXPECT_EQ(repeats.Note("b", kStart + absl::Seconds(6)), std::nullopt);
}

TEST(LogRepeatsTest, TextCountsAsNewAfterTwoMinutesAndAfterClear) {
  LogRepeats repeats;
  ASSERT_TRUE(repeats.Note("a", kStart).has_value());
  const absl::Time later = kStart + absl::Seconds(121);
  EXPECT_THAT(repeats.Note("a", later), Optional(absl::ZeroDuration()));
  EXPECT_EQ(repeats.Note("a", later + absl::Seconds(1)), std::nullopt);
  repeats.Clear();
  EXPECT_THAT(repeats.Note("a", later + absl::Seconds(1)),
              Optional(absl::ZeroDuration()));
}

TEST(LogRepeatsTest, TextNotedLongestAgoIsForgottenFirst) {
  LogRepeats repeats;
  const int count = LogRepeats::kKeptMax;
  const auto time = [](int i) { return kStart + absl::Milliseconds(i); };
  for (int i = 0; i <= count; ++i) {
    ASSERT_TRUE(repeats.Note(absl::StrCat(i), time(i)).has_value());
  }
  EXPECT_EQ(repeats.Note("1", time(count + 1)), std::nullopt);
  EXPECT_THAT(repeats.Note("0", time(count + 1)),
              Optional(absl::ZeroDuration()));
}

TEST(LogRepeatsTest, LineSaysHowLongItLasts) {
  EXPECT_EQ(LastsText(absl::ZeroDuration()), "");
  EXPECT_EQ(LastsText(absl::Seconds(12.7)), " (for 12 s now)");
}

}  // namespace
}  // namespace nereus
