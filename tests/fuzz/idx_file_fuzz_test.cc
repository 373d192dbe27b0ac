// Feeds hostile files of images and labels to their reader, plain and gzip.
// Each test runs for two seconds, or longer with
//
//   NEREUS_FUZZ_SECONDS=600 bazel-bin/tests/fuzz/idx_file_fuzz_test
//
// A build with --config=asan finds most. A failure prints the seed
// that replays it, NEREUS_TEST_SEED.

#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/mutation.h"
#include "worker/trainer/idx_file.h"

namespace nereus {
namespace {

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;

struct Pair {
  std::string images;
  std::string labels;
};

void AppendBigEndian(uint32_t value, std::string& bytes) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
}

uint32_t BigEndianAt(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) {
    value = value << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return value;
}

std::string SoundLabels(Random& random, uint32_t count) {
  std::string labels;
  AppendBigEndian(kLabelsMagic, labels);
  AppendBigEndian(count, labels);
  return labels + RandomBytes(random, count);
}

Pair SoundPair(Random& random) {
  const auto count = static_cast<uint32_t>(1 + random.Below(5));
  const auto height = static_cast<uint32_t>(1 + random.Below(4));
  const auto width = static_cast<uint32_t>(1 + random.Below(4));
  Pair pair;
  for (const uint32_t word : {kImagesMagic, count, height, width}) {
    AppendBigEndian(word, pair.images);
  }
  pair.images += RandomBytes(random, uint64_t{count} * height * width);
  pair.labels = SoundLabels(random, count);
  return pair;
}

// Mutates a pair of files, in most cases only one file.
void MutatePair(Random& random, Pair& pair) {
  std::string& bytes = random.Chance(0.5) ? pair.images : pair.labels;
  if (random.Chance(0.05)) {
    bytes = RandomBytes(random, random.Below(40));
  } else if (random.Chance(0.2)) {
    // A dimension gets an extreme value.
    const size_t at = 4 + 4 * random.Below(bytes.size() < 16 ? 1 : 3);
    const auto value = static_cast<uint32_t>(EdgeNumber(random));
    for (size_t i = 0; i < 4; ++i) {
      bytes[at + i] = static_cast<char>(value >> (24 - 8 * i));
    }
  } else if (random.Chance(0.8)) {
    Mutate(random, bytes);
  }
  if (random.Chance(0.1)) {
    // The labels are sound, but may have another count than the images.
    const auto count = static_cast<uint32_t>(1 + random.Below(5));
    pair.labels = SoundLabels(random, count);
  }
  if (random.Chance(0.05)) std::swap(pair.images, pair.labels);
}

std::string Gzip(const std::string& bytes, int level) {
  z_stream stream = {};
  // 15 is the largest window; 16 more selects gzip's header.
  EXPECT_EQ(
      deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
      Z_OK);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  // zlib's interface takes a pointer to mutable input.
  std::string copy = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(copy.data());
  stream.avail_in = static_cast<uInt>(copy.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// Returns the elements of a plain file with this magic number, or nullopt if
// the file is not sound. Follows the definition of the format.
std::optional<std::vector<uint8_t>> ElementsOf(const std::string& bytes,
                                               uint32_t magic) {
  const size_t header_bytes = 4 + 4 * (magic & 0xff);
  if (bytes.size() < header_bytes || BigEndianAt(bytes, 0) != magic) {
    return std::nullopt;
  }
  uint64_t left = bytes.size() - header_bytes;
  if (left == 0) return std::nullopt;
  std::vector<uint8_t> elements(bytes.begin() + header_bytes, bytes.end());
  for (size_t at = 4; at < header_bytes; at += 4) {
    const uint32_t dimension = BigEndianAt(bytes, at);
    if (dimension == 0 || left % dimension != 0) return std::nullopt;
    left /= dimension;
  }
  if (left != 1) return std::nullopt;
  return elements;
}

bool IsGzip(const std::string& bytes) {
  return absl::StartsWith(bytes, "\x1f\x8b");
}

class IdxFileFuzzTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(
        testing::TempDir(), "/idx_",
        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<Dataset> Load(const Pair& pair) {
    return LoadIdxPair(Write("images", pair.images),
                       Write("labels", pair.labels));
  }

  // Checks that hold for all files.
  void CheckResult(const absl::StatusOr<Dataset>& dataset) {
    if (!dataset.ok()) {
      ASSERT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(absl::StrContains(dataset.status().message(), directory_));
      ASSERT_LT(dataset.status().message().size(), 1000u);
      return;
    }
    ++accepted_;
    ASSERT_GT(dataset->count(), 0);
    ASSERT_GT(dataset->image.height, 0);
    ASSERT_GT(dataset->image.width, 0);
    ASSERT_EQ(dataset->image.channels, 1);
    ASSERT_EQ(std::ssize(dataset->pixels),
              dataset->count() * dataset->image.length());
  }

  std::string directory_;
  uint64_t accepted_ = 0;

 private:
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
};

TEST_F(IdxFileFuzzTest, PlainPairIsReadIfAndOnlyIfItIsSound) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      Pair pair = SoundPair(random);
      MutatePair(random, pair);
      if (IsGzip(pair.images) || IsGzip(pair.labels)) continue;
      const auto dataset = Load(pair);
      CheckResult(dataset);
      ASSERT_FALSE(HasFatalFailure());
      const auto pixels = ElementsOf(pair.images, kImagesMagic);
      const auto labels = ElementsOf(pair.labels, kLabelsMagic);
      ASSERT_EQ(dataset.ok(), pixels.has_value() && labels.has_value() &&
                                  labels->size() == BigEndianAt(pair.images, 4))
          << dataset.status();
      if (!dataset.ok()) continue;
      ASSERT_EQ(dataset->pixels, *pixels);
      ASSERT_EQ(dataset->labels, *labels);
      ASSERT_EQ(dataset->image.height, BigEndianAt(pair.images, 8));
    }
  }
  EXPECT_GT(accepted_, budget.runs());
}

TEST_F(IdxFileFuzzTest, GzipPairReadsLikeItsContents) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      Pair pair = SoundPair(random);
      MutatePair(random, pair);
      if (IsGzip(pair.images) || IsGzip(pair.labels)) continue;
      const auto plain = Load(pair);
      const int level = static_cast<int>(random.Below(10));
      if (random.Chance(0.7)) pair.images = Gzip(pair.images, level);
      if (random.Chance(0.7)) pair.labels = Gzip(pair.labels, level);
      const auto packed = Load(pair);
      CheckResult(packed);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_EQ(packed.status(), plain.status());
      if (!plain.ok()) continue;
      ASSERT_EQ(packed->image, plain->image);
      ASSERT_EQ(packed->pixels, plain->pixels);
      ASSERT_EQ(packed->labels, plain->labels);
    }
  }
  EXPECT_GT(accepted_, budget.runs());
}

TEST_F(IdxFileFuzzTest, BrokenGzipPairIsRefusedOrSound) {
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    for (int i = 0; i < 20; ++i) {
      Pair pair = SoundPair(random);
      const int level = static_cast<int>(random.Below(10));
      pair.images = Gzip(pair.images, level);
      pair.labels = Gzip(pair.labels, level);
      Mutate(random, random.Chance(0.5) ? pair.images : pair.labels);
      CheckResult(Load(pair));
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_GT(accepted_, budget.runs());
}

}  // namespace
}  // namespace nereus
