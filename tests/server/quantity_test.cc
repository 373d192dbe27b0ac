#include "server/admin/quantity.h"

#include <gtest/gtest.h>

#include <limits>

namespace nereus {
namespace {

TEST(QuantityTest, BitRatesAreANumberAndAUnit) {
  EXPECT_EQ(*ParseBitRate("10Gbit"), 1e10);
  EXPECT_EQ(*ParseBitRate("0.5Gbit"), 5e8);
  EXPECT_EQ(*ParseBitRate("400Mbit"), 4e8);
  EXPECT_EQ(*ParseBitRate("1e3kbit"), 1e6);
  EXPECT_EQ(*ParseBitRate("2Tbit"), 2e12);
  EXPECT_EQ(*ParseBitRate("7bit"), 7.0);
  EXPECT_EQ(*ParseBitRate("unlimited"),
            std::numeric_limits<double>::infinity());
  for (const char* text : {"", "10", "Gbit", "10GB", "0Gbit", "-1Gbit",
                           "infGbit", "nanGbit", "1e308Tbit", "10 Gbits"}) {
    EXPECT_EQ(ParseBitRate(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(QuantityTest, BitRatesAreShownInTheLargestUnit) {
  EXPECT_EQ(FormatBitRate(1e10), "10 Gbit/s");
  EXPECT_EQ(FormatBitRate(4.5e8), "450 Mbit/s");
  EXPECT_EQ(FormatBitRate(0.5), "0.5 bit/s");
  EXPECT_EQ(FormatBitRate(std::numeric_limits<double>::infinity()),
            "unlimited");
}

TEST(QuantityTest, TimesHaveAUnitOrAreSeconds) {
  EXPECT_EQ(*ParseTime("20us"), absl::Microseconds(20));
  EXPECT_EQ(*ParseTime("0.925s"), absl::Milliseconds(925));
  EXPECT_EQ(*ParseTime("0.925"), absl::Milliseconds(925));
  EXPECT_EQ(*ParseTime("1m30s"), absl::Seconds(90));
  EXPECT_EQ(*ParseTime("0"), absl::ZeroDuration());
  for (const char* text : {"", "s", "-1", "-1s", "inf", "nan", "1e400", "1x"}) {
    EXPECT_EQ(ParseTime(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

// 20 would be twenty seconds; a latency is mostly meant in microseconds.
TEST(QuantityTest, ShortTimeNeedsAUnit) {
  EXPECT_EQ(*ParseTimeWithUnit("20us"), absl::Microseconds(20));
  EXPECT_EQ(*ParseTimeWithUnit("0"), absl::ZeroDuration());
  const absl::Status status = ParseTimeWithUnit("20").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "\"20\" has no unit, such as in 20s, 20ms or 20us");
}

}  // namespace
}  // namespace nereus
