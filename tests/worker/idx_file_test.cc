// Checks the reader of IDX files with good files and with every kind of bad
// file that the format allows.

#include "worker/trainer/idx_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/random.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
  return bytes;
}

std::string Header(std::initializer_list<uint32_t> words) {
  std::string bytes;
  for (uint32_t word : words) bytes += BigEndian(word);
  return bytes;
}

// Returns a file of `count` images of 2 x 3 pixels. Every pixel of image i has
// the value i.
std::string Images(uint32_t count) {
  std::string bytes = Header({0x803, count, 2, 3});
  for (uint32_t i = 0; i < count; ++i)
    bytes += std::string(6, static_cast<char>(i));
  return bytes;
}

// Returns a file of the labels 0, 1, 2, ...
std::string Labels(uint32_t count) {
  std::string bytes = Header({0x801, count});
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string Gzip(const std::string& bytes) {
  const std::string path = testing::TempDir() + "/compressed.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned int>(bytes.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

class IdxFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name =
        testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = testing::TempDir() + "/idx_" + name;
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // Returns the error of loading two files as images and labels.
  absl::StatusOr<Dataset> Load(const std::string& images,
                               const std::string& labels) {
    return LoadIdxPair(Write("images", images), Write("labels", labels));
  }

  std::string directory_;
};

TEST_F(IdxFileTest, ReadsAPairPlainOrGzip) {
  const struct {
    std::string images;
    std::string labels;
  } kCases[] = {
      {Images(3), Labels(3)},
      {Gzip(Images(3)), Labels(3)},
      {Images(3), Gzip(Labels(3))},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<Dataset> dataset = Load(c.images, c.labels);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(dataset->image, (ImageShape{2, 3, 1}));
    EXPECT_THAT(dataset->labels, ElementsAre(0, 1, 2));
    EXPECT_THAT(dataset->pixels, ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1,
                                             2, 2, 2, 2, 2, 2));
  }
}

TEST_F(IdxFileTest, BadFilesAreRefusedWithBothValues) {
  const std::string truncated_gzip = Gzip(Images(200)).substr(0, 40);
  std::string corrupt_gzip = Gzip(Images(200));
  corrupt_gzip[corrupt_gzip.size() - 8] ^= 1;  // A byte of the checksum.
  const struct {
    const char* name;
    std::string images;
    std::string labels;
    const char* message;
  } kCases[] = {
      {"magic", Header({0x802, 1, 2, 3}) + "abcdef", Labels(1),
       "images starts with 0x00000802, a file of images with 0x00000803"},
      {"text", "hello, I am a text file", Labels(1),
       "starts with 0x68656c6c, a file of images with 0x00000803"},
      {"swapped", Labels(30), Images(30),
       "starts with 0x00000801, a file of images with 0x00000803: it holds "
       "labels, are the two files swapped?"},
      {"images_as_labels", Images(1), Images(1),
       "labels starts with 0x00000803, a file of labels with 0x00000801: it "
       "holds images"},
      {"empty", "", Labels(1), "images is truncated: 0 of 16 bytes of its "},
      {"two_bytes", std::string("\0\0", 2), Labels(1), "2 of 16 bytes of its "},
      {"short_header", Header({0x803, 1, 2}), Labels(1), "12 of 16 bytes of"},
      {"labels_header", Images(1), Header({0x801}), "4 of 8 bytes of its head"},
      {"truncated", Images(3).substr(0, 33), Labels(3),
       "is truncated: 17 of 18 bytes after its header"},
      {"trailing", Images(3) + "x", Labels(3),
       "has more than the 18 bytes that its header announces"},
      {"trailing_gzip", Gzip(Images(3) + "x"), Labels(3),
       "has more than the 18 bytes"},
      {"no_images", Images(0), Labels(0), "has the empty shape 0x2x3"},
      {"no_width", Header({0x803, 1, 2, 0}), Labels(1), "empty shape 1x2x0"},
      {"absurd", Header({0x803, 0xffffffff, 0xffffffff, 0xffffffff}), Labels(1),
       "has the shape 4294967295x4294967295x4294967295, more than 4294967296"},
      {"over_the_limit", Header({0x803, 65536, 65537, 1}), Labels(1),
       "has the shape 65536x65537x1, more than 4294967296 bytes in all"},
      {"announces_much_holds_little", Header({0x803, 65536, 65536, 1}) + "abc",
       Labels(1), "is truncated: 3 of 4294967296 bytes after its header"},
      {"counts_differ", Images(3), Labels(2), "images has 3 images, "},
      {"truncated_gzip", truncated_gzip, Labels(1), "gzip stream is broken: "},
      {"corrupt_gzip", corrupt_gzip, Labels(200), "gzip stream is broken: "},
      {"not_really_gzip", "\x1f\x8b not really gzip", Labels(1),
       "gzip stream is broken: "},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Load(c.images, c.labels).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(c.message), HasSubstr(directory_)))
        << c.name;
  }
}

TEST_F(IdxFileTest, RandomBytesNeverCrash) {
  for (const uint64_t seed : TestSeeds(300)) {
    SCOPED_TRACE(ReplayHint(seed));
    Random random(seed);
    std::string images = random.Chance(0.5) ? Images(4) : Gzip(Images(4));
    for (uint64_t i = 0; i <= random.Below(3); ++i) {
      images[random.Below(images.size())] = static_cast<char>(random.Next());
    }
    images.resize(random.Below(images.size()) + images.size() / 2);
    const absl::StatusOr<Dataset> dataset = Load(images, Labels(4));
    if (!dataset.ok()) continue;
    EXPECT_EQ(std::ssize(dataset->pixels),
              dataset->count() * dataset->image.length());
  }
}

TEST_F(IdxFileTest, MissingFileAndFolderAreNamed) {
  const std::string labels = Write("labels", Labels(1));
  const absl::Status missing =
      LoadIdxPair(directory_ + "/nothing", labels).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nothing: No such"));

  const absl::Status folder = LoadIdxPair(directory_, labels).status();
  EXPECT_EQ(folder.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.message()), HasSubstr("not a regular file"));
}

TEST_F(IdxFileTest, OnePairAloneIsSplit) {
  for (const char* prefix : {"train", "t10k"}) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    Write(std::string(prefix) + "-images-idx3-ubyte.gz", Gzip(Images(10)));
    Write(std::string(prefix) + "-labels-idx1-ubyte", Labels(10));
    const absl::StatusOr<DataSplit> split =
        LoadDirectory(directory_, 0.3, /*limit=*/0);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->train.count(), 7);
    EXPECT_THAT(split->test.labels, ElementsAre(7, 8, 9));
  }
}

TEST_F(IdxFileTest, TwoPairsAreTrainingAndTest) {
  Write("train-images-idx3-ubyte", Images(5));
  Write("train-labels-idx1-ubyte", Labels(5));
  Write("t10k-images-idx3-ubyte", Images(3));
  Write("t10k-labels-idx1-ubyte", Labels(3));
  const absl::StatusOr<DataSplit> split =
      LoadDirectory(directory_, 0.3, /*limit=*/0);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->train.count(), 5);
  EXPECT_EQ(split->test.count(), 3);
  EXPECT_EQ(split->normalisation.mean, NormalisationOf(split->train).mean);

  const absl::StatusOr<DataSplit> limited =
      LoadDirectory(directory_, 0.3, /*limit=*/4);
  ASSERT_TRUE(limited.ok()) << limited.status();
  EXPECT_EQ(limited->train.count(), 4);
  EXPECT_EQ(limited->test.count(), 3);
}

TEST_F(IdxFileTest, LimitComesBeforeTheSplit) {
  Write("t10k-images-idx3-ubyte", Images(10));
  Write("t10k-labels-idx1-ubyte", Labels(10));
  const absl::StatusOr<DataSplit> split =
      LoadDirectory(directory_, 0.25, /*limit=*/4);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->train.labels, ElementsAre(0, 1, 2));
  EXPECT_THAT(split->test.labels, ElementsAre(3));
}

TEST_F(IdxFileTest, FolderWithoutDataNamesTheExpectedFiles) {
  const absl::Status status = LoadDirectory(directory_, 0.2, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(directory_), HasSubstr("train-images-idx3-ubyte[.gz]"),
            HasSubstr("t10k-labels-idx1-ubyte[.gz]")));
}

TEST_F(IdxFileTest, HalfAPairIsAnError) {
  Write("train-labels-idx1-ubyte", Labels(5));
  const absl::Status status = LoadDirectory(directory_, 0.2, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has train-labels-idx1-ubyte but not "
                        "train-images-idx3-ubyte"));
}

TEST_F(IdxFileTest, PairsOfDifferentShapesAreAnError) {
  Write("train-images-idx3-ubyte", Images(1));
  Write("train-labels-idx1-ubyte", Labels(1));
  Write("t10k-images-idx3-ubyte", Header({0x803, 1, 1, 2}) + "ab");
  Write("t10k-labels-idx1-ubyte", Labels(1));
  const absl::Status status = LoadDirectory(directory_, 0.2, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("to train with are 2x3, to test with 1x2"));
}

}  // namespace
}  // namespace nereus
