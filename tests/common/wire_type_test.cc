#include "common/plan/wire_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

TEST(WireTypeTest, NamesAreParsedBack) {
  for (const WireType wire : kWireTypes) {
    const auto parsed = ParseWireType(WireTypeName(wire));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, wire);
  }
}

TEST(WireTypeTest, UnknownNamesAreRefusedWithTheKnownNames) {
  for (const char* name : {"", "none", "FP16", "float", "fp8"}) {
    const auto parsed = ParseWireType(name);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()),
                testing::AllOf(testing::HasSubstr(name),
                               testing::HasSubstr("fp32, bf16 and fp16")));
  }
}

TEST(WireTypeTest, EachTypeHasItsBytesPerValue) {
  EXPECT_EQ(WireBytes(WireType::kNone), 0);
  EXPECT_EQ(WireBytes(WireType::kFloat32), 4);
  EXPECT_EQ(WireBytes(WireType::kBfloat16), 2);
  EXPECT_EQ(WireBytes(WireType::kFloat16), 2);
}

}  // namespace
}  // namespace nereus
