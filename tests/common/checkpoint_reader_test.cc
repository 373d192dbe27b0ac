// Reading of checkpoints by jobs with any number of shards. Damage tests flip a
// bit of each byte, and cut a file at each length. A reader must report the
// damage and never return wrong values.

#include "common/checkpoint/checkpoint_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/shard_writer.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_checkpoint.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

using ::testing::HasSubstr;

TestCheckpoint SomeCheckpoint(int shards = 2) {
  return {.round = 5, .shards = shards, .layers = AwkwardLayers()};
}

std::string PathOf(const Manifest& manifest, int file) {
  return absl::StrCat(CheckpointFolder(manifest.round), "/",
                      manifest.files[file].name);
}

TEST(CheckpointReaderTest, ShardsReadCheckpointsOfOtherShardCounts) {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    for (const int shards : {1, 2, 3, 7, 40}) {
      for (const int64_t written : {1, 7, 8, 9, 100}) {
        SimulatedStorage storage(/*seed=*/0);
        TestCheckpoint checkpoint = SomeCheckpoint(shards);
        checkpoint.rule = rule;
        checkpoint.chunk_elements = written;
        const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
        ASSERT_EQ(VerifyCheckpoint(storage, manifest), absl::OkStatus());
        for (const int64_t read : {1, 3, 8, 9, 100}) {
          TestCheckpoint other = checkpoint;
          other.chunk_elements = read;
          ASSERT_EQ(CheckTestCheckpoint(storage, manifest, other),
                    absl::OkStatus())
              << shards << " shards, chunks of " << written << ", read by "
              << read;
        }
      }
    }
  }
}

// The first file has more than two blocks of kReadBlockBytes.
TEST(CheckpointReaderTest, LargeFilesAreReadInBlocks) {
  SimulatedStorage storage(/*seed=*/0);
  TestCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.chunk_elements = 300'000;
  checkpoint.layers = {
      {"large", LayerKind::kFullyConnected, 1000, 701, 701'000, 1, true}};
  const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
  ASSERT_GT(manifest.files[0].bytes, 2 * CheckpointReader::kReadBlockBytes);
  EXPECT_EQ(VerifyCheckpoint(storage, manifest), absl::OkStatus());
  checkpoint.chunk_elements = 111'111;
  EXPECT_EQ(CheckTestCheckpoint(storage, manifest, checkpoint),
            absl::OkStatus());
}

TEST(CheckpointReaderTest, StateMayBeAbsent) {
  SimulatedStorage storage(/*seed=*/0);
  TestCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.with_state = false;
  const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
  EXPECT_EQ(VerifyCheckpoint(storage, manifest), absl::OkStatus());
  EXPECT_EQ(CheckTestCheckpoint(storage, manifest, checkpoint),
            absl::OkStatus());
  CheckpointReader reader = *CheckpointReader::Open(&storage, manifest);
  EXPECT_EQ(reader.StateArrays(1), 0);
  const auto values = reader.ReadValues(1, 0, 8, 1);
  EXPECT_THAT(values.status(),
              IsNotFound("no elements 0 to 8 of velocity of layer chunk"));
}

TEST(CheckpointReaderTest, CallersOptimizerMayHaveManyArrays) {
  for (const int arrays : {0, 1, 3, kStateArraysMax}) {
    SCOPED_TRACE(arrays);
    SimulatedStorage storage(/*seed=*/0);
    TestCheckpoint checkpoint = SomeCheckpoint(/*shards=*/3);
    checkpoint.callers_arrays = arrays;
    const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
    ASSERT_EQ(VerifyCheckpoint(storage, manifest), absl::OkStatus());
    checkpoint.chunk_elements = 5;
    EXPECT_EQ(CheckTestCheckpoint(storage, manifest, checkpoint),
              absl::OkStatus());
    CheckpointReader reader = *CheckpointReader::Open(&storage, manifest);
    EXPECT_EQ(reader.StateArrays(1), arrays);
    EXPECT_EQ(reader.ReadValues(1, 0, 8, arrays + 1).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(CheckpointReaderTest, StateMayBeLeftUnread) {
  SimulatedStorage storage(/*seed=*/0);
  TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
  checkpoint.with_state = false;
  EXPECT_EQ(CheckTestCheckpoint(storage, manifest, checkpoint),
            absl::OkStatus());
  const auto reader = CheckpointReader::Open(&storage, manifest);
  EXPECT_EQ(reader->StateArrays(1), 1);
}

TEST(CheckpointReaderTest, RangesOutsideTheModelAreRefused) {
  SimulatedStorage storage(/*seed=*/0);
  const Manifest manifest = *WriteTestCheckpoint(storage, SomeCheckpoint());
  CheckpointReader reader = *CheckpointReader::Open(&storage, manifest);
  const auto code = [&](int layer, int64_t offset, int64_t length, int states) {
    return reader.ReadValues(layer, offset, length, states).status().code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(-1, 0, 1, 0), kInvalid);
  EXPECT_EQ(code(7, 0, 1, 0), kInvalid);
  EXPECT_EQ(code(1, -1, 1, 0), kInvalid);
  EXPECT_EQ(code(1, 0, 0, 0), kInvalid);
  EXPECT_EQ(code(1, 0, 9, 0), kInvalid);
  EXPECT_EQ(code(1, 8, 1, 0), kInvalid);
  EXPECT_EQ(code(1, 1, INT64_MAX, 0), kInvalid);
  EXPECT_EQ(code(1, 0, 8, 2), kInvalid);
  EXPECT_EQ(code(1, 0, 8, -1), kInvalid);
  EXPECT_EQ(code(1, 0, 8, 1), absl::StatusCode::kOk);
}

// Writes a file for each element of `shards`, and a manifest that lists them.
Manifest WriteShards(SimulatedStorage& storage,
                     const TestCheckpoint& checkpoint,
                     const std::vector<std::vector<ChunkValues>>& shards) {
  Manifest manifest;
  manifest.job = "test";
  manifest.round = checkpoint.round;
  manifest.state_arrays = checkpoint.state_arrays();
  manifest.layers = checkpoint.layers;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const auto file =
        WriteShard(storage,
                   {checkpoint.round, static_cast<int>(shard),
                    static_cast<int>(shards.size())},
                   checkpoint.layers, checkpoint.state_names(), shards[shard]);
    EXPECT_TRUE(file.ok()) << file.status();
    manifest.files.push_back(*file);
  }
  return manifest;
}

TEST(CheckpointReaderTest, OverlappingFilesAreRefused) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = WriteShards(
      storage, checkpoint,
      {{TestValues(checkpoint, 4, 0, 10)}, {TestValues(checkpoint, 4, 9, 5)}});
  const auto reader = CheckpointReader::Open(&storage, manifest);
  EXPECT_THAT(reader.status(),
              IsDataLoss("has elements from 9 of layer chunk.velocity"));
}

TEST(CheckpointReaderTest, MissingValuesAreNamed) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = WriteShards(storage, checkpoint,
                                        {{TestValues(checkpoint, 4, 0, 10)},
                                         {TestValues(checkpoint, 4, 12, 13)}});
  CheckpointReader reader = *CheckpointReader::Open(&storage, manifest);
  EXPECT_TRUE(reader.ReadValues(4, 0, 10, 1).ok());
  EXPECT_TRUE(reader.ReadValues(4, 12, 13, 1).ok());
  const auto values = reader.ReadValues(4, 5, 10, 1);
  EXPECT_THAT(values.status(),
              IsNotFound("no elements 10 to 12 of layer chunk.velocity"));
  EXPECT_EQ(reader.Verify().code(), absl::StatusCode::kDataLoss);
}

TEST(CheckpointReaderTest, PartialStateOfALayerIsRefused) {
  SimulatedStorage storage(/*seed=*/0);
  TestCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.shards = 1;
  std::vector<ChunkValues> chunks = TestShardValues(checkpoint, 0);
  chunks.back().state = Buffer();
  EXPECT_EQ(
      VerifyCheckpoint(storage, WriteShards(storage, checkpoint, {chunks})),
      absl::OkStatus());
  ASSERT_EQ(chunks[5].layer, chunks[6].layer);
  chunks[5].state = Buffer();
  EXPECT_THAT(
      VerifyCheckpoint(storage, WriteShards(storage, checkpoint, {chunks})),
      IsDataLoss("velocity of layer"));
}

// The file has a sound header, but its tensors do not belong to the model.
TEST(CheckpointReaderTest, FilesOfAnotherModelAreRefused) {
  const TestCheckpoint checkpoint = SomeCheckpoint(1);
  const struct {
    const char* message;
    int layer;
    LayerSpec in_manifest;
    UpdateRule rule;
  } kCases[] = {
      {"which the manifest does not have",
       0,
       {"two", LayerKind::kVector, 1, 1, 1, 4},
       UpdateRule::kSgd},
      {"tensor chunk has 32 bytes, its 9 elements mean 36",
       1,
       {"chunk", LayerKind::kVector, 1, 9, 9, 4},
       UpdateRule::kSgd},
      {"is a state, the manifest has first_moment, second_moment",
       6,
       {"100%", LayerKind::kVector, 1, 3, 3, 4},
       UpdateRule::kAdam},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.message);
    SimulatedStorage storage(/*seed=*/0);
    Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
    manifest.layers[c.layer] = c.in_manifest;
    manifest.optimizer.rule = c.rule;
    manifest.state_arrays = OptimizerStateCount(c.rule);
    const auto reader = CheckpointReader::Open(&storage, manifest);
    EXPECT_THAT(reader.status(), IsDataLoss(c.message));
  }
}

TEST(CheckpointReaderTest, EachFlippedByteIsFound) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
  for (int file = 0; file < 2; ++file) {
    std::string& contents = storage.Contents(PathOf(manifest, file));
    for (size_t i = 0; i < contents.size(); ++i) {
      const char before = contents[i];
      contents[i] = static_cast<char>(before ^ (1 << (i % 8)));
      EXPECT_EQ(VerifyCheckpoint(storage, manifest).code(),
                absl::StatusCode::kDataLoss)
          << "byte " << i;
      EXPECT_EQ(CheckTestCheckpoint(storage, manifest, checkpoint).code(),
                absl::StatusCode::kDataLoss)
          << "byte " << i;
      contents[i] = before;
    }
  }
  EXPECT_EQ(VerifyCheckpoint(storage, manifest), absl::OkStatus());
}

TEST(CheckpointReaderTest, EachTruncationIsFound) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = *WriteTestCheckpoint(storage, checkpoint);
  std::string& contents = storage.Contents(PathOf(manifest, 1));
  while (!contents.empty()) {
    contents.pop_back();
    EXPECT_EQ(VerifyCheckpoint(storage, manifest).code(),
              absl::StatusCode::kDataLoss);
    // A truncated file is damaged even if the manifest states the shorter
    // length.
    Manifest shorter = manifest;
    shorter.files[1].bytes = std::ssize(contents);
    shorter.files[1].crc32c = Crc32c(contents.data(), contents.size());
    EXPECT_EQ(VerifyCheckpoint(storage, shorter).code(),
              absl::StatusCode::kDataLoss);
  }
}

// A reader reads the data of only those files that have the values it needs.
TEST(CheckpointReaderTest, DamageFailsOnlyReadersOfTheFile) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const Manifest manifest = WriteShards(
      storage, checkpoint,
      {{TestValues(checkpoint, 1, 0, 4)}, {TestValues(checkpoint, 1, 4, 4)}});
  storage.Contents(PathOf(manifest, 1)).back() ^= 1;
  CheckpointReader reader = *CheckpointReader::Open(&storage, manifest);
  EXPECT_TRUE(reader.ReadValues(1, 0, 4, 1).ok());
  const auto values = reader.ReadValues(1, 0, 5, 1);
  EXPECT_THAT(values.status(), IsDataLoss("CRC-32C"));
}

TEST(CheckpointReaderTest, MissingFileIsDamageAndUnavailableDiskIsNot) {
  SimulatedStorage storage(/*seed=*/0);
  const Manifest manifest = *WriteTestCheckpoint(storage, SomeCheckpoint());
  ASSERT_TRUE(storage.RemoveFile(PathOf(manifest, 1)).ok());
  EXPECT_EQ(CheckpointReader::Open(&storage, manifest).status().code(),
            absl::StatusCode::kDataLoss);
  storage.CrashAfterSteps(0);
  EXPECT_FALSE(storage.RemoveFile(PathOf(manifest, 0)).ok());
  EXPECT_EQ(CheckpointReader::Open(&storage, manifest).status().code(),
            absl::StatusCode::kUnavailable);
}

// Storage of files that several threads may read at a time.
TEST(CheckpointReaderTest, SeveralThreadsFindTheSameAsOne) {
  const std::string root = absl::StrCat(testing::TempDir(), "/reader_threads");
  std::filesystem::remove_all(root);
  const auto storage = FileStorage::Open(root);
  ASSERT_TRUE(storage.ok()) << storage.status();
  const Manifest manifest = *WriteTestCheckpoint(
      **storage, {.round = 3, .shards = 5, .layers = AwkwardLayers()});
  int64_t all = 0;
  for (const ManifestFile& file : manifest.files) all += file.bytes;
  std::atomic<int64_t> read = 0;
  const auto verify = [&](int threads) {
    read = 0;
    return VerifyCheckpoint(**storage, manifest, threads,
                            [&](int64_t bytes) { read += bytes; });
  };
  for (const int threads : {1, 4, 9}) {
    EXPECT_EQ(verify(threads), absl::OkStatus());
    EXPECT_EQ(read, all);
  }
  const std::string damaged = manifest.files[3].name;
  std::fstream file(absl::StrCat(root, "/round-000000000003/", damaged),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('?');
  file.close();
  for (const int threads : {1, 4, 9}) {
    EXPECT_THAT(verify(threads), IsDataLoss(damaged));
  }
}

}  // namespace
}  // namespace nereus
