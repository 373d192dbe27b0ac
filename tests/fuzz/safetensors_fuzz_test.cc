// Feeds hostile headers of safetensors files to their parser. Each test runs
// for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/safetensors_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/checkpoint/safetensors.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

constexpr int64_t kDataBytes = 4 + 24 + 12;

std::string SomeHeader() {
  return "{\"__metadata__\":{\"round\":\"3\"},"
         "\"fc[0:1].velocity\":{\"dtype\":\"F32\",\"shape\":[],"
         "\"data_offsets\":[0,4]},"
         "\"fc\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
         "\"e\":{\"dtype\":\"F32\",\"shape\":[0,9],\"data_offsets\":[28,28]},"
         "\"v%5B\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[28,40]}}";
}

// Checks the promises of the parser for each accepted header.
void CheckAccepted(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t end = header.data_offset;
  for (const SafetensorsTensor& tensor : header.tensors) {
    ASSERT_EQ(header.data_offset + tensor.offset, end);
    ASSERT_GE(tensor.bytes, 0);
    end += tensor.bytes;
    ASSERT_LE(end, file_bytes);
    int64_t bytes = 4;
    for (const int64_t extent : tensor.shape) bytes *= extent;
    ASSERT_EQ(bytes, tensor.bytes);
    const auto name = DecodeTensorName(tensor.name);
    if (name.ok()) {
      ASSERT_EQ(EncodeTensorName(*name), tensor.name);
    }
  }
  ASSERT_EQ(end, file_bytes);
  const auto again = EncodeSafetensorsHeader(header.tensors, header.metadata);
  ASSERT_TRUE(again.ok()) << again.status();
  const auto decoded = DecodeSafetensorsHeader(
      again->substr(kSafetensorsPrefixBytes),
      static_cast<int64_t>(again->size()) + file_bytes - header.data_offset);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->tensors, header.tensors);
  ASSERT_EQ(decoded->metadata, header.metadata);
}

void CheckOne(const std::string& text, int64_t data_bytes, uint64_t& accepted) {
  const int64_t file_bytes =
      kSafetensorsPrefixBytes + std::ssize(text) + data_bytes;
  const auto header = DecodeSafetensorsHeader(text, file_bytes);
  if (!header.ok()) {
    ASSERT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
    ASSERT_LT(header.status().message().size(), 4000u);
    return;
  }
  ++accepted;
  CheckAccepted(*header, file_bytes);
}

TEST(SafetensorsFuzzTest, MutatedHeadersAreRefusedOrSound) {
  uint64_t accepted = 0;
  CheckOne(SomeHeader(), kDataBytes, accepted);
  ASSERT_EQ(accepted, 1u) << "the unspoilt header is refused";
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 50; ++i) {
      std::string text = random.Chance(0.05)
                             ? RandomBytes(random, random.Below(64))
                             : SomeHeader();
      Mutate(random, text);
      CheckOne(text, kDataBytes, accepted);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted, budget.runs());
}

// Parses well-formed headers with extreme numbers.
TEST(SafetensorsFuzzTest, ExtremeNumbersAreRefusedOrSound) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    uint64_t accepted = 0;
    std::string text = "{";
    uint64_t end = 0;
    for (uint64_t i = 1 + random.Below(3); i > 0; --i) {
      const uint64_t m = EdgeNumber(random);
      const uint64_t n = random.Chance(0.5) ? 1 : EdgeNumber(random);
      const uint64_t begin = random.Chance(0.9) ? end : EdgeNumber(random);
      end = random.Chance(0.9) ? begin + 4 * m * n : EdgeNumber(random);
      absl::StrAppend(&text, text.size() > 1 ? "," : "", "\"t", i,
                      "\":{\"dtype\":\"F32\",\"shape\":[", m, ",", n,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
    }
    text += "}";
    // A file has at most 2^63 - 1 bytes.
    const auto bytes = static_cast<int64_t>(
        end % (uint64_t{std::numeric_limits<int64_t>::max()} - 10000));
    CheckOne(text, bytes, accepted);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(SafetensorsFuzzTest, PrefixesAreRefusedOrInRange) {
  FuzzBudget budget;
  uint64_t accepted = 0;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string prefix = RandomBytes(random, random.Below(10));
    // Almost all random lengths are too large, so half of the prefixes have a
    // length around the limit.
    if (random.Chance(0.5)) {
      uint64_t length = random.Below(2 * kSafetensorsHeaderBytesMax);
      prefix.clear();
      for (int i = 0; i < 8; ++i, length >>= 8) {
        prefix.push_back(static_cast<char>(length & 0xff));
      }
    }
    const auto file_bytes = static_cast<int64_t>(EdgeNumber(random));
    const auto bytes = DecodeSafetensorsPrefix(prefix, file_bytes);
    if (!bytes.ok()) continue;
    ++accepted;
    ASSERT_GE(*bytes, 0);
    ASSERT_LE(*bytes, kSafetensorsHeaderBytesMax);
    ASSERT_LE(*bytes, file_bytes - kSafetensorsPrefixBytes);
  }
  EXPECT_GE(accepted, budget.runs() / 100);
}

// Nests as deep as a header allows. No function may recurse.
TEST(SafetensorsFuzzTest, DeepNestingDoesNoHarm) {
  constexpr size_t kDepth = size_t{4} << 20;
  for (const char* begin : {"{\"a\":", "{\"a\":{\"shape\":"}) {
    const std::string text = absl::StrCat(begin, std::string(kDepth, '['),
                                          std::string(kDepth, ']'), "}}");
    uint64_t accepted = 0;
    CheckOne(text, 0, accepted);
    EXPECT_EQ(accepted, 0u);
  }
}

}  // namespace
}  // namespace nereus
