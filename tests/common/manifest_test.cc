// Manifests of checkpoints as text. Each truncation and each changed byte must
// be refused. ManifestReplacementTest changes a value under a correct checksum.

#include "common/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_checkpoint.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Manifest SomeManifest() {
  Manifest manifest;
  manifest.job = "training";
  manifest.round = 120;
  manifest.contributions_before = 484;
  manifest.optimizer = kReferenceOptimizer;
  manifest.optimizer_place = OptimizerPlace::kWorker;
  manifest.state_arrays = 3;
  manifest.layers = AwkwardLayers();
  manifest.worker_settings = {{"--seed", "7"}, {"--data", "60 images"}};
  manifest.files = {{"shard-0-of-2-epoch-4.safetensors", 1234, 0xdeadbeef},
                    {"shard-1-of-2-epoch-4.safetensors", 0, 7}};
  return manifest;
}

std::string Encode(const Manifest& manifest) {
  const auto text = EncodeManifest(manifest);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

// Returns `text` with a correct checksum. Damage under a correct checksum must
// be found too.
std::string WithChecksum(const std::string& text) {
  const std::string before = text.substr(0, text.rfind(",\n  \"crc32c\""));
  return absl::StrFormat("%s,\n  \"crc32c\": \"%08x\"\n}\n", before,
                         Crc32c(before.data(), before.size()));
}

TEST(ManifestTest, WrittenManifestIsReadBack) {
  const Manifest manifest = SomeManifest();
  EXPECT_EQ(*DecodeManifest(Encode(manifest)), manifest);
}

TEST(ManifestTest, ManifestIsReadableText) {
  const std::string text = Encode(SomeManifest());
  EXPECT_THAT(text, HasSubstr("{\n  \"format\": \"nereus-checkpoint\",\n"
                              "  \"version\": 1,\n  \"job\": \"training\",\n"
                              "  \"round\": 120,\n"));
  EXPECT_THAT(text, HasSubstr("\"learning_rate\": 0.02,\n"));
  EXPECT_THAT(text, HasSubstr("\"name\": \"less \\\"quoted\\\\\",\n"));
}

// Earlier builds wrote no settings.
TEST(ManifestTest, ManifestWithoutSettingsIsRead) {
  Manifest manifest = SomeManifest();
  manifest.worker_settings.clear();
  const std::string text = absl::StrReplaceAll(
      Encode(manifest), {{"  \"worker_settings\": [],\n", ""}});
  EXPECT_THAT(text, Not(HasSubstr("settings")));
  EXPECT_EQ(*DecodeManifest(WithChecksum(text)), manifest);
}

TEST(ManifestTest, TooManySettingsAreRefused) {
  Manifest manifest = SomeManifest();
  manifest.worker_settings.resize(kSettingsMax + 1);
  EXPECT_THAT(std::string(EncodeManifest(manifest).status().message()),
              HasSubstr("worker_settings has 65 items, at most 64"));
}

TEST(ManifestTest, FloatsKeepTheirBits) {
  for (const uint64_t seed : TestSeeds(2000)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    Manifest manifest = SomeManifest();
    manifest.optimizer.learning_rate =
        std::ldexp(static_cast<float>(random.Below(1 << 24)),
                   static_cast<int>(random.Below(253)) - 149);
    manifest.optimizer.momentum = static_cast<float>(random.Uniform() * 0.99);
    EXPECT_EQ(DecodeManifest(Encode(manifest))->optimizer, manifest.optimizer);
  }
}

TEST(ManifestTest, EachTruncationIsRefused) {
  const std::string text = Encode(SomeManifest());
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_EQ(DecodeManifest(text.substr(0, bytes)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bytes;
  }
}

TEST(ManifestTest, EachChangedByteIsRefused) {
  const std::string text = Encode(SomeManifest());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 5, 7}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(DecodeManifest(changed).ok()) << i;
    }
  }
  EXPECT_FALSE(DecodeManifest(text + "\n").ok());
  EXPECT_FALSE(DecodeManifest(std::string(text.size(), '\0')).ok());
}

struct Replacement {
  const char* name;
  const char* from;
  const char* to;
  const char* message;
};

class ManifestReplacementTest : public testing::TestWithParam<Replacement> {};

// The checksum is correct, so the other checks must find the error.
TEST_P(ManifestReplacementTest, BadValueIsRefusedWithTheReason) {
  const std::string text = Encode(SomeManifest());
  const std::string changed =
      absl::StrReplaceAll(text, {{GetParam().from, GetParam().to}});
  ASSERT_NE(changed, text);
  const auto manifest = DecodeManifest(WithChecksum(changed));
  EXPECT_THAT(manifest.status(), IsInvalidArgument(GetParam().message));
}

const Replacement kManifestReplacementRows[] = {
    {"Format", "nereus-checkpoint", "other", "format is"},
    {"NoFormat", "\"format\"", "\"form\"", "format is missing"},
    {"NotJson", "\"version\": 1", "\"version\"", "is not JSON"},
    {"NegativeRound", "\"round\": 120", "\"round\": -1",
     "round is -1, not from 0 to 999999999999"},
    {"LargeRound", "\"round\": 120", "\"round\": 1000000000000",
     "round is 1000000000000, not from 0 to 999999999999"},
    {"FractionalRound", "\"round\": 120", "\"round\": 1.5",
     "round is number 1.5"},
    {"TextRound", "\"round\": 120", "\"round\": \"120\"", "round is string"},
    {"Contributions", ": 484", ": 18446744073709551615",
     "contributions_before is 18446744073709551615"},
    {"Job", "training", "a b", "job is \"a b\""},
    {"Setting", "60 images", "60\\nimages",
     "worker_settings has \"60\\nimages\", not at most 256 "
     "printable characters"},
    {"Settings", "\"value\": \"7\"", "\"value\": 7",
     "worker_settings[0]: value is number 7, not a string"},
    {"Place", "\"worker\"", "\"nowhere\"", "nowhere"},
    {"StateArrays", "\"state_arrays\": 3", "\"state_arrays\": 9",
     "state_arrays is 9"},
    {"StateOfServer", "\"worker\"", "\"server\"",
     "state_arrays is 3, sgd has 1"},
    {"Rule", "\"sgd\"", "\"lamb\"", "lamb"},
    {"HugeFloat", "\"learning_rate\": 0.02", "\"learning_rate\": 1e300",
     "learning_rate is 1e+300"},
    {"NegativeFloat", "\"learning_rate\": 0.02", "\"learning_rate\": -1",
     "learning_rate is -1"},
    {"NullFloat", "\"learning_rate\": 0.02", "\"learning_rate\": null",
     "learning_rate is null"},
    {"LayerKind", "\"conv\"", "\"pool\"", "pool"},
    {"LayerField", "\"rows\": 4", "\"rows\": -2",
     "layers[0]: rows is -2, not from -1"},
    {"LayerSizes", "\"n\": 16", "\"n\": 18",
     "17 parameters, fewer than its matrix 1x18"},
    {"LayerNameTwice", "\"100%\"", "\"one\"", "two layers have the name one"},
    {"FileInAnotherFolder", "shard-0-of-2", "../shard", "file name"},
    {"FileTwice", "shard-1-of-2", "shard-0-of-2", "occurs twice"},
    {"FileBytes", ": 1234", ": 72057594037927937",
     "bytes is 72057594037927937"},
    {"FileChecksum", ": 3735928559", ": 4294967296",
     "crc32c is 4294967296, not from 0 to 4294967295"},
    {"NoFiles", "\"files\"", "\"files\": [], \"more\"", "files has 0 items"},
    {"FilesAreNoList", "\"files\"", "\"files\": {}, \"more\"",
     "files is object"},
};

INSTANTIATE_TEST_SUITE_P(Fields, ManifestReplacementTest,
                         testing::ValuesIn(kManifestReplacementRows),
                         [](const auto& info) { return info.param.name; });

TEST(ManifestTest, OtherVersionIsNamedInTheError) {
  const std::string text = absl::StrReplaceAll(
      Encode(SomeManifest()), {{"\"version\": 1", "\"version\": 2"}});
  const auto manifest = DecodeManifest(WithChecksum(text));
  EXPECT_THAT(manifest.status(), IsError(absl::StatusCode::kUnimplemented,
                                         "version is 2, this build reads 1"));
}

TEST(ManifestTest, DeepNestingDoesNoHarm) {
  constexpr size_t kDepth = size_t{2} << 20;
  const std::string deep =
      absl::StrCat("\"deep\": ", std::string(kDepth, '['),
                   std::string(kDepth, ']'), ",\n  \"job\"");
  const std::string text =
      absl::StrReplaceAll(Encode(SomeManifest()), {{"\"job\"", deep}});
  const auto manifest = DecodeManifest(WithChecksum(text));
  if (manifest.ok()) {
    EXPECT_EQ(*manifest, SomeManifest());
  }
}

// Decoding makes the same checks: ManifestReplacementTest has the other fields.
TEST(ManifestTest, FieldsOutOfRangeAreRefused) {
  const std::vector<std::function<void(Manifest&)>> kBad = {
      [](Manifest& m) { m.job.clear(); },
      [](Manifest& m) { m.job.assign(kManifestJobBytesMax + 1, 'a'); },
      [](Manifest& m) { m.contributions_before = -1; },
      [](Manifest& m) { m.optimizer.momentum = 1.0f; },
      [](Manifest& m) { m.state_arrays = -1; },
      [](Manifest& m) { m.optimizer.learning_rate = HUGE_VALF; },
      [](Manifest& m) { m.layers.clear(); },
      [](Manifest& m) { m.files[0].bytes = -1; },
  };
  for (size_t i = 0; i < kBad.size(); ++i) {
    Manifest manifest = SomeManifest();
    kBad[i](manifest);
    EXPECT_EQ(EncodeManifest(manifest).status().code(),
              absl::StatusCode::kInvalidArgument)
        << i;
  }
}

// A checkpoint can be made before the job knows the rows, or after a layer has
// lost its factors.
TEST(ManifestTest, RowsThatAreNotKnownAreReadBack) {
  for (const int64_t rows : {kRowsNotKnown, kFactorsLost}) {
    Manifest manifest = SomeManifest();
    manifest.layers.push_back(
        {"fc", LayerKind::kFullyConnected, 2, 3, 6, rows, true});
    EXPECT_EQ(*DecodeManifest(Encode(manifest)), manifest);
  }
}

}  // namespace
}  // namespace nereus
