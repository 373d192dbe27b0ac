// Files of checkpoints as a shard writes them. The last test reads such a file
// with read_checkpoint.py, which shares no code with the writer.

#include "common/checkpoint/shard_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/crc32c.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/safetensors.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFolder[] = "round-000000000003/";

SafetensorsHeader HeaderOf(const std::string& contents) {
  const auto bytes = std::ssize(contents);
  const auto header_bytes =
      DecodeSafetensorsPrefix(contents.substr(0, 8), bytes);
  EXPECT_TRUE(header_bytes.ok()) << header_bytes.status();
  const auto header =
      DecodeSafetensorsHeader(contents.substr(8, *header_bytes), bytes);
  EXPECT_TRUE(header.ok()) << header.status();
  return *header;
}

std::vector<std::string> TensorsOf(const SafetensorsHeader& header) {
  std::vector<std::string> tensors;
  for (const SafetensorsTensor& tensor : header.tensors) {
    tensors.push_back(
        absl::StrCat(tensor.name, " ", absl::StrJoin(tensor.shape, "x")));
  }
  return tensors;
}

TestCheckpoint SomeCheckpoint() {
  return {.round = 3, .chunk_elements = 4, .layers = AwkwardLayers()};
}

// A member that counts as dead, or a server of an earlier job, may still write.
// So the name of a file has the epoch and the job.
TEST(ShardWriterTest, WholeLayerIsATensorOfItsShape) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const ManifestFile file =
      *WriteShard(storage, {3, 0, 1, 7, 0x1000000ab}, checkpoint.layers,
                  checkpoint.state_names(), TestShardValues(checkpoint, 0));
  const std::string& contents =
      storage.Contents(absl::StrCat(kFolder, file.name));
  EXPECT_EQ(file.name, "shard-0-of-1-epoch-7-000000ab.safetensors");
  EXPECT_EQ(file.bytes, std::ssize(contents));
  EXPECT_EQ(file.crc32c, Crc32c(contents.data(), contents.size()));
  const SafetensorsHeader header = HeaderOf(contents);
  EXPECT_THAT(
      TensorsOf(header),
      ElementsAre("one 1", "one.velocity 1", "chunk 2x4", "chunk.velocity 2x4",
                  "less \"quoted\\ 7x1", "less \"quoted\\.velocity 7x1",
                  "more%5B0:8%5D 9", "more%5B0:8%5D.velocity 9",
                  "chunk%2Evelocity 5x5", "chunk%2Evelocity.velocity 5x5",
                  "%5F_metadata__ 17", "%5F_metadata__.velocity 17", "100%25 3",
                  "100%25.velocity 3"));
  EXPECT_EQ(header.metadata.at("round"), "3");
  EXPECT_EQ(header.metadata.at("shard"), "0");
  EXPECT_EQ(header.metadata.at("shards"), "1");
  EXPECT_EQ(header.metadata.at("epoch"), "7");
}

TEST(ShardWriterTest, PartsOfALayerNameTheirElements) {
  SimulatedStorage storage(/*seed=*/0);
  TestCheckpoint checkpoint = SomeCheckpoint();
  checkpoint.rule = UpdateRule::kAdam;
  const std::vector<ChunkValues> chunks = {
      TestValues(checkpoint, 4, 0, 2), TestValues(checkpoint, 4, 2, 3),
      TestValues(checkpoint, 4, 6, 1), TestValues(checkpoint, 4, 20, 5)};
  const ManifestFile file = *WriteShard(storage, {3, 1, 2}, checkpoint.layers,
                                        checkpoint.state_names(), chunks);
  EXPECT_THAT(
      TensorsOf(HeaderOf(storage.Contents(absl::StrCat(kFolder, file.name)))),
      ElementsAre(
          "chunk%2Evelocity[0:5] 5", "chunk%2Evelocity[0:5].first_moment 5",
          "chunk%2Evelocity[0:5].second_moment 5", "chunk%2Evelocity[6:7] 1",
          "chunk%2Evelocity[6:7].first_moment 1",
          "chunk%2Evelocity[6:7].second_moment 1", "chunk%2Evelocity[20:25] 5",
          "chunk%2Evelocity[20:25].first_moment 5",
          "chunk%2Evelocity[20:25].second_moment 5"));
}

// A disk may store other bytes than it was given.
TEST(ShardWriterTest, FileIsReadBackFromTheDisk) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const auto write = [&] {
    return WriteShard(storage, {3, 0, 1, 7}, checkpoint.layers,
                      checkpoint.state_names(), TestShardValues(checkpoint, 0))
        .status();
  };
  storage.CorruptNext();
  const absl::Status spoiled = write();
  EXPECT_EQ(spoiled.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(spoiled.message()),
      AllOf(HasSubstr("round-000000000003/shard-0-of-1-epoch-7-00000000"),
            HasSubstr("when it is read back")));
  EXPECT_EQ(storage.forgotten(), 1);
  EXPECT_EQ(write(), absl::OkStatus());
}

TEST(ShardWriterTest, ShardMayHaveNoChunks) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  const ManifestFile file = *WriteShard(storage, {3, 4, 5}, checkpoint.layers,
                                        checkpoint.state_names(), {});
  EXPECT_TRUE(HeaderOf(storage.Contents(absl::StrCat(kFolder, file.name)))
                  .tensors.empty());
}

TEST(ShardWriterTest, WrongChunksAreRefusedAndNothingIsWritten) {
  const TestCheckpoint checkpoint = SomeCheckpoint();
  using Chunks = std::vector<ChunkValues>;
  const struct {
    const char* message;
    std::function<void(Chunks&)> change;
  } kCases[] = {
      {"layer 7, the model has 7", [](Chunks& c) { c[1].layer = 7; }},
      {"layer -1", [](Chunks& c) { c[1].layer = -1; }},
      {"elements from 22, length 4", [](Chunks& c) { c[1].offset = 22; }},
      {"elements from -1", [](Chunks& c) { c[1].offset = -1; }},
      {"length 0", [](Chunks& c) { c[1].length = 0; }},
      {"length -1", [](Chunks& c) { c[1].length = -1; }},
      {"20 bytes of parameters, its length 4 means 16",
       [](Chunks& c) { c[1].parameters = Buffer::Allocate(20); }},
      {"32 bytes of state, 1 arrays mean 16",
       [](Chunks& c) { c[1].state = Buffer::Allocate(32); }},
      {"after one that ends at 4", [](Chunks& c) { c[1].offset = 3; }},
      {"after one that ends at 4", [](Chunks& c) { c[1] = c[0]; }},
      {"after one", [](Chunks& c) { c[1].layer = 3; }},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.message);
    SimulatedStorage storage(/*seed=*/0);
    Chunks chunks = {TestValues(checkpoint, 4, 0, 4),
                     TestValues(checkpoint, 4, 4, 4)};
    c.change(chunks);
    const auto file = WriteShard(storage, {3, 0, 1}, checkpoint.layers,
                                 checkpoint.state_names(), chunks);
    EXPECT_THAT(file.status(), IsInvalidArgument(c.message));
    EXPECT_TRUE(storage.List("")->empty());
  }
}

TEST(ShardWriterTest, ImpossibleShardsAndRoundsAreRefused) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  for (const ShardFile file :
       {ShardFile{-1, 0, 1}, ShardFile{kCheckpointRoundMax + 1, 0, 1},
        ShardFile{0, 1, 1}, ShardFile{0, -1, 1}, ShardFile{0, 0, 0},
        ShardFile{0, 0, 65537}}) {
    EXPECT_EQ(WriteShard(storage, file, checkpoint.layers,
                         checkpoint.state_names(), {})
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ShardWriterTest, CompleteCheckpointIsNotOverwritten) {
  SimulatedStorage storage(/*seed=*/0);
  const TestCheckpoint checkpoint = SomeCheckpoint();
  ASSERT_TRUE(WriteTestCheckpoint(storage, checkpoint).ok());
  EXPECT_EQ(WriteTestCheckpoint(storage, checkpoint).status().code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(RemoveCheckpoint(storage, checkpoint.round).ok());
  EXPECT_TRUE(WriteTestCheckpoint(storage, checkpoint).ok());
}

// Output of `python3 tests/common/read_checkpoint.py <folder>`.
std::string RunPython(const std::string& folder) {
  const std::string command =
      absl::StrCat("python3 tests/common/read_checkpoint.py '", folder, "'");
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  char block[4096];
  for (size_t got; (got = fread(block, 1, sizeof(block), pipe)) > 0;) {
    output.append(block, got);
  }
  EXPECT_EQ(pclose(pipe), 0);
  return output;
}

std::string HexOf(const Buffer& buffer, int64_t offset, int64_t bytes) {
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(buffer.data()) + offset,
       static_cast<size_t>(bytes)});
}

TEST(ShardWriterTest, IndependentReaderFindsTheSameValues) {
  const std::string root = absl::StrCat(testing::TempDir(), "/python");
  std::filesystem::remove_all(root);
  auto storage = FileStorage::Open(root);
  ASSERT_TRUE(storage.ok()) << storage.status();
  for (const int shards : {1, 3}) {
    SCOPED_TRACE(shards);
    TestCheckpoint checkpoint = SomeCheckpoint();
    checkpoint.round = shards;
    checkpoint.shards = shards;
    checkpoint.rule = UpdateRule::kAdam;
    ASSERT_TRUE(WriteTestCheckpoint(**storage, checkpoint).ok());

    // Maps "<layer>|<array>" to the values in hex.
    std::map<std::string, std::string> found;
    const std::string output =
        RunPython(absl::StrCat(root, "/", CheckpointFolder(shards)));
    for (const absl::string_view line :
         absl::StrSplit(output, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> fields = absl::StrSplit(line, '|');
      ASSERT_EQ(fields.size(), 4u) << line;
      found[absl::StrCat(fields[0], "|", fields[1])] = fields[3];
    }
    EXPECT_EQ(found.size(), checkpoint.layers.size() * 3);
    for (size_t i = 0; i < checkpoint.layers.size(); ++i) {
      const LayerSpec& layer = checkpoint.layers[i];
      const ChunkValues values =
          TestValues(checkpoint, static_cast<int>(i), 0, layer.parameters);
      const int64_t bytes = layer.parameters * 4;
      EXPECT_EQ(found[layer.name + "|parameters"],
                HexOf(values.parameters, 0, bytes));
      EXPECT_EQ(found[layer.name + "|first_moment"],
                HexOf(values.state, 0, bytes));
      EXPECT_EQ(found[layer.name + "|second_moment"],
                HexOf(values.state, bytes, bytes));
    }
  }
}

}  // namespace
}  // namespace nereus
