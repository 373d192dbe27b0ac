// Structs of the C interface across versions of nereus.h.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/c_api/binding.h"
#include "worker/c_api/nereus.h"
#include "worker/c_api/structs.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Struct of three headers, each with a field more.
struct First {
  uint32_t size;
  int32_t a;
};
struct Second {
  uint32_t size;
  int32_t a;
  int64_t b;
};
struct Third {
  uint32_t size;
  int32_t a;
  int64_t b;
  int64_t c;
};

const Second* AsSecond(const void* data) {
  return static_cast<const Second*>(data);
}

TEST(CStructsTest, AnOlderCallersMissingFieldsAreZero) {
  const First in = {sizeof(First), 7};
  const auto read = ReadStruct("thing", AsSecond(&in), sizeof(First));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->a, 7);
  EXPECT_EQ(read->b, 0);
}

TEST(CStructsTest, ANewerCallersUnknownFieldsMustBeZero) {
  Third in = {sizeof(Third), 7, 8, 0};
  const auto read = ReadStruct("thing", AsSecond(&in), sizeof(First));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->b, 8);
  in.c = 1;
  const auto refused = ReadStruct("thing", AsSecond(&in), sizeof(First));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("thing has a value at byte 16"));
}

TEST(CStructsTest, ASizeThatNoHeaderHadIsRefused) {
  for (const uint32_t size : {0u, 7u, 12u, 5000u}) {
    const Second in = {size, 7, 8};
    const auto refused = ReadStruct("thing", &in, sizeof(First));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("thing.size is " + std::to_string(size)));
  }
  EXPECT_FALSE(ReadStruct("thing", AsSecond(nullptr), sizeof(First)).ok());
}

TEST(CStructsTest, WhatDoesNotFitAnOlderCallersStructIsNotWritten) {
  Second out = {sizeof(First), 0, -1};
  ASSERT_TRUE(WriteStruct("thing", Second{0, 7, 8}, sizeof(First), &out).ok());
  EXPECT_EQ(out.size, sizeof(First));
  EXPECT_EQ(out.a, 7);
  EXPECT_EQ(out.b, -1);
}

TEST(CStructsTest, WhatAnOlderLibraryDoesNotKnowBecomesZero) {
  Third out = {sizeof(Third), 0, 0, -1};
  ASSERT_TRUE(CopyStructOut("thing", AsSecond(&out), sizeof(Second),
                            sizeof(First), alignof(Second), &out)
                  .ok());
  EXPECT_EQ(out.size, sizeof(Third));
  EXPECT_EQ(out.c, 0);
}

TEST(CStructsTest, ACheckOfTheRoomWritesNothing) {
  Second out = {sizeof(Second), 5, 6};
  EXPECT_TRUE(
      CheckStructOut("thing", &out, sizeof(First), alignof(Second)).ok());
  EXPECT_EQ(out.a, 5);
  EXPECT_EQ(out.b, 6);
  out.size = 7;
  EXPECT_FALSE(
      CheckStructOut("thing", &out, sizeof(First), alignof(Second)).ok());
}

// Sizes and places are part of the interface: they never change.
TEST(CStructsTest, TheFirstHeadersStructsKeepTheirLayout) {
  EXPECT_EQ(sizeof(nereus_setting), 16u);
  EXPECT_EQ(offsetof(nereus_client_options, staging_bytes), 112u);
  EXPECT_EQ(kClientOptionsBytesMin, 120u);
  EXPECT_EQ(offsetof(nereus_layer, parameters), 56u);
  EXPECT_EQ(offsetof(nereus_layer, on_host), 72u);
  EXPECT_EQ(kLayerBytesMin, 80u);
  EXPECT_EQ(offsetof(nereus_step, contributions_before), 32u);
  EXPECT_EQ(kStepBytesMin, 48u);
  EXPECT_EQ(offsetof(nereus_traits, epsilon), 48u);
  EXPECT_EQ(kTraitsBytesMin, 56u);
  EXPECT_EQ(offsetof(nereus_factors, input_length), 32u);
  EXPECT_EQ(kFactorsBytesMin, 40u);
}

}  // namespace
}  // namespace nereus
