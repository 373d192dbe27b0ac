// Feeds hostile manifests of checkpoints to their parser, most with a correct
// checksum. Each test runs for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/manifest_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/storage.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

std::string SomeText() {
  Manifest manifest;
  manifest.job = "training";
  manifest.round = 120;
  manifest.contributions_before = 484;
  manifest.state_arrays = 1;
  manifest.layers = AwkwardLayers();
  manifest.worker_settings = {{"--seed", "7"}};
  manifest.files = {{"shard-0-of-2-epoch-4.safetensors", 1234, 99},
                    {"shard-1-of-2-epoch-4.safetensors", 0, 7}};
  return *EncodeManifest(manifest);
}

// Returns the part of a manifest that its checksum covers. WithChecksum
// completes it.
std::string BodyOf(const std::string& text) {
  return text.substr(0, text.rfind(",\n  \"crc32c\""));
}
std::string WithChecksum(const std::string& body) {
  return absl::StrFormat("%s,\n  \"crc32c\": \"%08x\"\n}\n", body,
                         Crc32c(body.data(), body.size()));
}

void CheckOne(const std::string& text, uint64_t& accepted) {
  const auto manifest = DecodeManifest(text);
  if (!manifest.ok()) {
    ASSERT_TRUE(absl::IsInvalidArgument(manifest.status()) ||
                absl::IsUnimplemented(manifest.status()))
        << manifest.status();
    return;
  }
  ++accepted;
  ASSERT_TRUE(manifest->Validate().ok());
  for (const ManifestFile& file : manifest->files) {
    ASSERT_TRUE(ValidateStoragePart(file.name).ok());
  }
  const auto again = EncodeManifest(*manifest);
  ASSERT_TRUE(again.ok()) << again.status();
  const auto decoded = DecodeManifest(*again);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(*decoded, *manifest);
}

TEST(ManifestFuzzTest, MutationsUnderACorrectChecksumAreRefusedOrSound) {
  const std::string body = BodyOf(SomeText());
  uint64_t accepted = 0;
  CheckOne(WithChecksum(body), accepted);
  ASSERT_EQ(accepted, 1u) << "the unspoilt manifest is refused";
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      std::string changed = body;
      Mutate(random, changed);
      CheckOne(WithChecksum(changed), accepted);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted, budget.runs() / 2);
}

TEST(ManifestFuzzTest, ExtremeNumbersAreRefusedOrSound) {
  const std::string body = BodyOf(SomeText());
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    uint64_t accepted = 0;
    // Replaces the number after one of the colons.
    size_t begin = body.find(": ", random.Below(body.size() - 100));
    while (begin != std::string::npos &&
           (body[begin + 2] < '0' || body[begin + 2] > '9')) {
      begin = body.find(": ", begin + 1);
    }
    if (begin == std::string::npos) continue;
    const size_t end = body.find_first_of(",\n", begin);
    const char* sign = random.Chance(0.1) ? "-" : "";
    const std::string changed = absl::StrCat(
        body.substr(0, begin + 2), sign, EdgeNumber(random), body.substr(end));
    CheckOne(WithChecksum(changed), accepted);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(ManifestFuzzTest, OtherBytesAreRefused) {
  const std::string text = SomeText();
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string changed =
        random.Chance(0.2) ? RandomBytes(random, random.Below(200)) : text;
    Mutate(random, changed);
    if (changed == text) continue;
    ASSERT_FALSE(DecodeManifest(changed).ok());
  }
}

}  // namespace
}  // namespace nereus
