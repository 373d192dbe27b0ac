// Tests of the tables of names of enums.

#include "common/base/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace nereus {
namespace {

using testing::EndsWith;
using testing::StartsWith;

enum class Colour { kRed, kGreen, kBlue };
enum class Size : uint8_t { kSmall = 1, kLarge };

constexpr Named<Colour> kColours[] = {
    {Colour::kRed, "red"}, {Colour::kGreen, "green"}, {Colour::kBlue, "blue"}};
constexpr Named<Colour> kNoFirst[] = {{Colour::kGreen, "green"},
                                      {Colour::kBlue, "blue"}};
constexpr Named<Colour> kNoLast[] = {{Colour::kRed, "red"},
                                     {Colour::kGreen, "green"}};
constexpr Named<Colour> kNoMiddle[] = {{Colour::kRed, "red"},
                                       {Colour::kBlue, "blue"}};
constexpr Named<Size> kSizes[] = {{Size::kSmall, "small"},
                                  {Size::kLarge, "large"}};

TEST(NamesTest, TableIsCompleteWithEachEnumerator) {
  EXPECT_TRUE(IsComplete<kColours>());
  EXPECT_TRUE(IsComplete<kSizes>());
  EXPECT_FALSE(IsComplete<kNoFirst>());
  EXPECT_FALSE(IsComplete<kNoLast>());
  EXPECT_FALSE(IsComplete<kNoMiddle>());
}

TEST(NamesTest, NamesAreParsedBack) {
  for (const Named<Colour>& row : kColours) {
    EXPECT_EQ(NameOf<kColours>(row.value), row.name);
    const auto parsed = ParseName<kColours>("colour", row.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, row.value);
  }
}

TEST(NamesTest, NumberWithoutEnumeratorIsUnknown) {
  EXPECT_EQ(NameOf<kSizes>(static_cast<Size>(0)), "unknown");
  EXPECT_EQ(NameOf<kSizes>(static_cast<Size>(3)), "unknown");
}

TEST(NamesTest, UnknownNameIsRefusedWithTheKnownNames) {
  const absl::Status status = ParseName<kSizes>("size", "Small\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "unknown size \"Small\\n\", known are small, large");
}

TEST(NamesTest, LongNameIsCutInTheError) {
  const absl::Status status =
      ParseName<kSizes>("size", std::string(100, 'x')).status();
  EXPECT_THAT(std::string(status.message()),
              StartsWith("unknown size \"" + std::string(64, 'x') + "...\","));
  EXPECT_THAT(std::string(status.message()), EndsWith("small, large"));
}

}  // namespace
}  // namespace nereus
