// Headers of safetensors files: their bytes, and their parser.
// SafetensorsBadHeaderTest has a row for each header that must be refused.

#include "common/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_seed.h"

namespace nereus {

namespace {

using ::testing::HasSubstr;

// Decodes the header of a file with `data_bytes` bytes of data after the
// header.
absl::StatusOr<SafetensorsHeader> Decode(const std::string& header,
                                         int64_t data_bytes) {
  return DecodeSafetensorsHeader(
      header, kSafetensorsPrefixBytes + std::ssize(header) + data_bytes);
}

SafetensorsTensor Tensor(std::string name, std::vector<int64_t> shape,
                         int64_t offset = 0, int64_t bytes = 0) {
  return {std::move(name), std::move(shape), offset, bytes};
}

TEST(SafetensorsTest, HeaderMatchesTheFormatByteByByte) {
  const auto encoded =
      EncodeSafetensorsHeader({Tensor("a", {2, 3}), Tensor("b", {})}, {});
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  std::string expected =
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}";
  expected.append(128 - 8 - expected.size(), ' ');
  EXPECT_EQ(*encoded, std::string("\x78\0\0\0\0\0\0\0", 8) + expected);
}

TEST(SafetensorsTest, DataBeginsAtAMultipleOf64Bytes) {
  for (int length = 1; length < 130; ++length) {
    const auto encoded =
        EncodeSafetensorsHeader({Tensor(std::string(length, 'a'), {1})}, {});
    ASSERT_TRUE(encoded.ok());
    EXPECT_EQ(encoded->size() % 64, 0u) << length;
  }
}

TEST(SafetensorsTest, WrittenHeaderIsReadBack) {
  const std::vector<SafetensorsTensor> tensors = {
      Tensor("scalar", {}, 0, 4),
      Tensor("empty", {3, 0, 2}, 4, 0),
      Tensor("quoted \"\\\n\x7f", {1}, 4, 4),
      Tensor("\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82", {2, 2}, 8, 16),
      Tensor("", {1}, 24, 4),
  };
  const std::map<std::string, std::string> metadata = {{"a", "1"},
                                                       {"b \"", "\t"}};
  const auto encoded = EncodeSafetensorsHeader(tensors, metadata);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  const auto file_bytes = static_cast<int64_t>(encoded->size()) + 28;
  const auto header_bytes =
      DecodeSafetensorsPrefix(encoded->substr(0, 8), file_bytes);
  ASSERT_TRUE(header_bytes.ok()) << header_bytes.status();
  EXPECT_EQ(*header_bytes, static_cast<int64_t>(encoded->size()) - 8);
  const auto header = DecodeSafetensorsHeader(encoded->substr(8), file_bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors, tensors);
  EXPECT_EQ(header->metadata, metadata);
  EXPECT_EQ(header->data_offset, static_cast<int64_t>(encoded->size()));
}

TEST(SafetensorsTest, FileMayHaveNoTensors) {
  const auto encoded = EncodeSafetensorsHeader({}, {});
  ASSERT_TRUE(encoded.ok());
  EXPECT_TRUE(Decode(encoded->substr(8), 0).ok());
  EXPECT_TRUE(Decode("{}", 0).ok());
  EXPECT_FALSE(Decode("{}", 1).ok());
}

// Other writers may use any order of tensors and fields, and white space.
TEST(SafetensorsTest, HeadersOfOtherWritersAreRead) {
  const auto header = Decode(
      "{ \"b\" : {\"shape\":[1],\n\"data_offsets\":[8,12],\"dtype\":\"F32\"},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"__metadata__\":{\"format\":\"pt\"}}     ",
      12);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors,
            (std::vector<SafetensorsTensor>{Tensor("a", {2}, 0, 8),
                                            Tensor("b", {1}, 8, 4)}));
}

TEST(SafetensorsTest, ImpossibleTensorsAreNotWritten) {
  const std::vector<std::vector<SafetensorsTensor>> kBad = {
      {Tensor("a", {1}), Tensor("a", {1})},
      {Tensor("__metadata__", {1})},
      {Tensor("\xff", {1})},
      {Tensor("a", {-1})},
      {Tensor("a", {int64_t{1} << 31, int64_t{1} << 31})},
      {Tensor("a", {int64_t{1} << 60}), Tensor("b", {int64_t{1} << 60})},
      {Tensor("a", std::vector<int64_t>(kSafetensorsDimensionsMax + 1, 1))},
  };
  for (const auto& tensors : kBad) {
    EXPECT_EQ(EncodeSafetensorsHeader(tensors, {}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(EncodeSafetensorsHeader({}, {{"a", "\xff"}}).ok());
  EXPECT_FALSE(
      EncodeSafetensorsHeader({}, {{"a", std::string(100'000'000, 'a')}}).ok());
}

TEST(SafetensorsTest, HeadersBeyondTheFileOrTheLimitAreRefused) {
  const auto prefix = [](uint64_t bytes) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &bytes, 8);
    return text;
  };
  EXPECT_EQ(*DecodeSafetensorsPrefix(prefix(92), 100), 92);
  EXPECT_FALSE(DecodeSafetensorsPrefix(prefix(93), 100).ok());
  EXPECT_FALSE(DecodeSafetensorsPrefix(prefix(UINT64_MAX), 100).ok());
  EXPECT_TRUE(DecodeSafetensorsPrefix(prefix(100'000'000), INT64_MAX).ok());
  EXPECT_FALSE(DecodeSafetensorsPrefix(prefix(100'000'001), INT64_MAX).ok());
  EXPECT_FALSE(DecodeSafetensorsPrefix("1234567", 7).ok());
  EXPECT_FALSE(DecodeSafetensorsPrefix("", 0).ok());
}

struct BadHeader {
  const char* name;
  const char* text;
  const char* message;
};

class SafetensorsBadHeaderTest : public testing::TestWithParam<BadHeader> {};

// Each file has 8 bytes of data.
TEST_P(SafetensorsBadHeaderTest, BadHeaderIsRefusedWithTheReason) {
  const auto header = Decode(GetParam().text, 8);
  EXPECT_THAT(header.status(), IsInvalidArgument(GetParam().message));
}

#define TENSOR(name, shape, offsets)                  \
  "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape \
  "],\"data_offsets\":[" offsets "]}"

const BadHeader kHeadersSafetensorsBadHeaderRows[] = {
    {"Empty", "", "no JSON object"},
    {"Spaces", "   ", "no JSON object"},
    {"SpaceFirst", " {}", "no JSON object"},
    {"LineFeedLast", "{}\n", "no JSON object"},
    {"List", "[]", "no JSON object"},
    {"NotJson", "{\"a\"}", "not JSON at byte"},
    {"TwoObjects", "{}{}", "not JSON at byte"},
    {"NotUtf8", "{\"\xff\":1}", "not JSON at byte"},
    {"Hole", "{" TENSOR("a", "1", "0,4") "," TENSOR("b", "0", "8,8") "}",
     "begins at byte 8, the one before ends at 4"},
    {"Overlap", "{" TENSOR("a", "2", "0,8") "," TENSOR("b", "1", "4,8") "}",
     "begins at byte 4, the one before ends at 8"},
    {"NotFromTheStart", "{" TENSOR("a", "1", "4,8") "}",
     "begins at byte 4, the one before ends at 0"},
    {"TooShort", "{" TENSOR("a", "1", "0,4") "}",
     "end at byte 4 of the data, the data at 8"},
    {"TooLong", "{" TENSOR("a", "3", "0,12") "}",
     "end at byte 12 of the data, the data at 8"},
    {"OffsetsAgainstShape", "{" TENSOR("a", "3", "0,8") "}", "means 12 bytes"},
    {"OffsetsBackwards", "{" TENSOR("a", "2", "8,0") "}",
     "data_offsets 8 to 0"},
    {"ThreeOffsets", "{" TENSOR("a", "2", "0,8,8") "}", "3 offsets"},
};

INSTANTIATE_TEST_SUITE_P(Headers, SafetensorsBadHeaderTest,
                         testing::ValuesIn(kHeadersSafetensorsBadHeaderRows),
                         [](const auto& info) { return info.param.name; });

const BadHeader kFieldsSafetensorsBadHeaderRows[] = {
    {"NegativeShape", "{" TENSOR("a", "-2", "0,8") "}", "number -2"},
    {"FractionInShape", "{" TENSOR("a", "2.0", "0,8") "}", "number"},
    {"HugeNumber", "{" TENSOR("a", "9223372036854775808", "0,8") "}",
     "above 2^63 - 1"},
    {"Overflow", "{" TENSOR("a", "4611686018427387904,4", "0,8") "}",
     "more bytes than"},
    {"TooManyDimensions",
     "{" TENSOR("a", "2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,8") "}",
     "too many"},
    {"SameNameTwice",
     "{" TENSOR("a", "1", "0,4") "," TENSOR("a", "1", "4,8") "}",
     "\"a\" occurs twice"},
    {"SameFieldTwice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}",
     "\"dtype\" occurs twice"},
    {"MetadataTwice", "{\"__metadata__\":{},\"__metadata__\":{}}",
     "occurs twice"},
    {"OtherType",
     "{\"a\":{\"dtype\":\"F16\",\"shape\":[4],"
     "\"data_offsets\":[0,8]}}",
     "only F32"},
    {"NoShape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}",
     "2 fields"},
    {"UnknownField", "{\"a\":{\"stride\":[1]}}",
     "unexpected list for \"stride\""},
    {"NumberAsTensor", "{\"a\":1}", "unexpected number 1"},
    {"NullAsTensor", "{\"a\":null}", "unexpected null"},
    {"ListAsTensor", "{\"a\":[]}", "unexpected list"},
    {"ListInShape", "{" TENSOR("a", "[2]", "0,8") "}", "unexpected list"},
    {"ObjectInShape", "{" TENSOR("a", "{}", "0,8") "}", "unexpected object"},
    {"ObjectInTensor", "{\"a\":{\"shape\":{}}}", "unexpected object"},
    {"NumberInMetadata", "{\"__metadata__\":{\"a\":1}}",
     "unexpected number 1 for \"a\""},
};

INSTANTIATE_TEST_SUITE_P(Fields, SafetensorsBadHeaderTest,
                         testing::ValuesIn(kFieldsSafetensorsBadHeaderRows),
                         [](const auto& info) { return info.param.name; });

#undef TENSOR

struct Named {
  TensorName name;
  const char* text;
};

const std::vector<Named>& Examples() {
  static const auto& examples = *new std::vector<Named>{
      {{"fc6", true, 0, 0, ""}, "fc6"},
      {{"fc6", true, 0, 0, "velocity"}, "fc6.velocity"},
      {{"fc6.velocity", true, 0, 0, ""}, "fc6%2Evelocity"},
      {{"fc6.velocity", true, 0, 0, "velocity"}, "fc6%2Evelocity.velocity"},
      {{"a.b", false, 3, 8, "first_moment"}, "a.b[3:8].first_moment"},
      {{"a.second_moment", false, 0, 1, ""}, "a%2Esecond_moment[0:1]"},
      {{"fc6", true, 0, 0, "state0"}, "fc6.state0"},
      {{"fc6.state7", false, 0, 1, "state7"}, "fc6%2Estate7[0:1].state7"},
      {{"fc6.state8", true, 0, 0, ""}, "fc6.state8"},
      {{"a[0:1]", true, 0, 0, ""}, "a%5B0:1%5D"},
      {{"100%", true, 0, 0, ""}, "100%25"},
      {{"%2Evelocity", true, 0, 0, ""}, "%252Evelocity"},
      {{"__metadata__", true, 0, 0, ""}, "%5F_metadata__"},
      {{"__metadata__", false, 0, 2, ""}, "%5F_metadata__[0:2]"},
      {{"a b\"\\", true, 0, 0, ""}, "a b\"\\"},
  };
  return examples;
}

TEST(TensorNameTest, NamesMatchTheFormat) {
  for (const Named& example : Examples()) {
    EXPECT_EQ(EncodeTensorName(example.name), example.text);
    EXPECT_EQ(*DecodeTensorName(example.text), example.name) << example.text;
  }
}

TEST(TensorNameTest, StatesBelongToTheRuleOrTheCaller) {
  using testing::ElementsAre;
  EXPECT_THAT(StateNames(OptimizerPlace::kServer, UpdateRule::kSgd, 1),
              ElementsAre("velocity"));
  EXPECT_THAT(StateNames(OptimizerPlace::kServer, UpdateRule::kAdam, 2),
              ElementsAre("first_moment", "second_moment"));
  EXPECT_THAT(StateNames(OptimizerPlace::kWorker, UpdateRule::kAdam, 3),
              ElementsAre("state0", "state1", "state2"));
  EXPECT_TRUE(StateNames(OptimizerPlace::kWorker, UpdateRule::kSgd, 0).empty());
}

TEST(TensorNameTest, UnwrittenNamesAreNotRead) {
  for (const char* text : {"",
                           "a[0:1",
                           "a[0:1]]",
                           "a[0:1][0:1]",
                           "a[1:1]",
                           "a[2:1]",
                           "a[-1:1]",
                           "a[0:]",
                           "a[:1]",
                           "a[0]",
                           "a[ 0:1]",
                           "a[00:1]",
                           "a[+0:1]",
                           "a]",
                           "100%",
                           "a%5b",
                           "a%41",
                           "a%2E",
                           "%5F",
                           "__metadata__",
                           "[0:1]",
                           ".velocity",
                           "a[0:9223372036854775808]",
                           "a[0:1].state",
                           "a\n",
                           "\xc3\xa4"}) {
    EXPECT_EQ(DecodeTensorName(text).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

// Names are made of parts that have a meaning in names, so that a wrong rule
// would give two tensors the same name.
TEST(TensorNameTest, DifferentTensorsHaveDifferentNames) {
  constexpr const char* kParts[] = {
      "a",  ".velocity", ".state0",      "[0:1]",     "%",
      "2E", "5B",        "%2E",          "[",         "]",
      "__", ".",         "first_moment", "metadata__"};
  for (const uint64_t seed : TestSeeds(3000)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    TensorName name;
    for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
      name.layer += kParts[random.Below(std::size(kParts))];
    }
    name.whole = random.Chance(0.5);
    if (!name.whole) {
      name.first = static_cast<int64_t>(random.Below(3));
      name.last = name.first + 1;
    }
    if (random.Chance(0.5)) {
      name.state = random.Chance(0.5) ? "velocity" : "state0";
    }
    const std::string text = EncodeTensorName(name);
    EXPECT_NE(text, "__metadata__");
    EXPECT_EQ(*DecodeTensorName(text), name) << text;
  }
}

}  // namespace

}  // namespace nereus
