// The folders of a storage with checkpoints: the list of complete and
// incomplete checkpoints, and the removal of old ones. The last test crashes
// the removal after each of its steps.

#include "common/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/crc32c.h"
#include "common/checkpoint/checkpoint_layout.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/shard_writer.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TestCheckpoint OfRound(int64_t round) {
  return {.round = round, .shards = 2, .layers = AwkwardLayers()};
}

void Write(Storage& storage, std::vector<int64_t> rounds) {
  for (const int64_t round : rounds) {
    const auto manifest = WriteTestCheckpoint(storage, OfRound(round));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
  }
}

// Writes the file of one shard, without a manifest.
void WritePart(Storage& storage, int64_t round) {
  const TestCheckpoint checkpoint = OfRound(round);
  ASSERT_TRUE(WriteShard(storage, {round, 0, 2}, checkpoint.layers,
                         checkpoint.state_names(),
                         TestShardValues(checkpoint, 0))
                  .ok());
}

std::vector<int64_t> CompleteRounds(Storage& storage) {
  const auto list = ListCheckpoints(storage);
  EXPECT_TRUE(list.ok()) << list.status();
  std::vector<int64_t> rounds;
  for (const Manifest& manifest : list->complete) {
    rounds.push_back(manifest.round);
  }
  return rounds;
}

std::vector<int64_t> IncompleteRounds(Storage& storage) {
  const auto list = ListCheckpoints(storage);
  EXPECT_TRUE(list.ok()) << list.status();
  std::vector<int64_t> rounds;
  for (const IncompleteCheckpoint& checkpoint : list->incomplete) {
    EXPECT_FALSE(checkpoint.why.ok());
    rounds.push_back(checkpoint.round);
  }
  return rounds;
}

TEST(CheckpointLayoutTest, FolderNamesHoldTheRound) {
  EXPECT_EQ(CheckpointFolder(0), "round-000000000000");
  EXPECT_EQ(CheckpointFolder(kCheckpointRoundMax), "round-999999999999");
  EXPECT_EQ(ManifestName(12), "round-000000000012/manifest.json");
  EXPECT_EQ(ParseCheckpointFolder("round-000000000120"), 120);
  for (const char* name :
       {"", "round-", "round-120", "round-0000000000120", "round-00000000012x",
        "round--00000000012", "round-+00000000012", "Round-000000000120"}) {
    EXPECT_EQ(ParseCheckpointFolder(name), std::nullopt) << name;
  }
}

TEST(CheckpointTest, EmptyStorageHasNoCheckpoint) {
  SimulatedStorage storage(/*seed=*/0);
  EXPECT_THAT(CompleteRounds(storage), IsEmpty());
  EXPECT_EQ(KeepLast(storage, 1), absl::OkStatus());
  EXPECT_EQ(RemoveCheckpoint(storage, 3), absl::OkStatus());
  EXPECT_EQ(ReadManifest(storage, 3).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(CheckpointTest, CompleteCheckpointsAreListedNewestFirst) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {20, 3, 100});
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(100, 20, 3));
  EXPECT_THAT(IncompleteRounds(storage), IsEmpty());
  const auto manifest = ReadManifest(storage, 20);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->round, 20);
  EXPECT_EQ(VerifyCheckpoint(storage, *manifest), absl::OkStatus());
}

TEST(CheckpointTest, IncompleteCheckpointsAreListedWithTheReason) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1, 2, 3, 4, 5});
  WritePart(storage, 6);
  ASSERT_TRUE(
      storage.RemoveFile("round-000000000002/shard-1-of-2-epoch-0.safetensors")
          .ok());
  storage.Contents("round-000000000003/shard-0-of-2-epoch-0.safetensors")
      .pop_back();
  storage.Contents(ManifestName(4)).pop_back();
  storage.Contents(ManifestName(5)) = storage.Contents(ManifestName(1));
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(1));
  const auto list = ListCheckpoints(storage);
  const char* kReasons[] = {"there is no round-000000000006/manifest.json",
                            "manifest.json is of round 1, not 5",
                            "torn or changed", "bytes, the manifest says",
                            "shard-1-of-2-epoch-0.safetensors is missing"};
  ASSERT_EQ(list->incomplete.size(), std::size(kReasons));
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    EXPECT_EQ(list->incomplete[i].round, static_cast<int64_t>(6 - i));
    EXPECT_EQ(list->incomplete[i].folder,
              CheckpointFolder(static_cast<int64_t>(6 - i)));
    EXPECT_THAT(std::string(list->incomplete[i].why.message()),
                HasSubstr(kReasons[i]));
  }
}

TEST(CheckpointTest, OtherFoldersAreNotListed) {
  SimulatedStorage storage(/*seed=*/0);
  ASSERT_TRUE(storage.WriteFile("round-000000000007", {}).ok());
  ASSERT_TRUE(storage.WriteFile("other/manifest.json", {}).ok());
  EXPECT_THAT(CompleteRounds(storage), IsEmpty());
  EXPECT_THAT(IncompleteRounds(storage), IsEmpty());
}

TEST(CheckpointTest, ManifestOfMissingFilesIsNotWritten) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1});
  Manifest manifest = *ReadManifest(storage, 1);
  manifest.round = 2;
  EXPECT_EQ(WriteManifest(storage, manifest).code(),
            absl::StatusCode::kFailedPrecondition);
  WritePart(storage, 2);
  EXPECT_EQ(WriteManifest(storage, manifest).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(1));
}

TEST(CheckpointTest, RemovalKeepsNewestAndUnfinishedCheckpoints) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {10, 20, 30, 40});
  for (const int64_t round : {5, 25, 45}) WritePart(storage, round);
  ASSERT_EQ(KeepLast(storage, 2), absl::OkStatus());
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(40, 30));
  EXPECT_THAT(IncompleteRounds(storage), ElementsAre(45));
  ASSERT_EQ(KeepLast(storage, 1), absl::OkStatus());
  ASSERT_EQ(KeepLast(storage, 1), absl::OkStatus());
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(40));
  EXPECT_EQ(
      CheckTestCheckpoint(storage, *ReadManifest(storage, 40), OfRound(40)),
      absl::OkStatus());
}

TEST(CheckpointTest, NothingIsRemovedWithoutACompleteCheckpoint) {
  SimulatedStorage storage(/*seed=*/0);
  WritePart(storage, 1);
  WritePart(storage, 2);
  ASSERT_EQ(KeepLast(storage, 1), absl::OkStatus());
  EXPECT_THAT(IncompleteRounds(storage), ElementsAre(2, 1));
}

TEST(CheckpointTest, CheckpointsOfNewerBuildsAreKept) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1, 2});
  std::string& text = storage.Contents(ManifestName(1));
  text = absl::StrReplaceAll(text, {{"\"version\": 1", "\"version\": 2"}});
  text.resize(text.rfind(",\n  \"crc32c\""));
  const uint32_t crc = Crc32c(text.data(), text.size());
  absl::StrAppend(&text, ",\n  \"crc32c\": \"", absl::Hex(crc, absl::kZeroPad8),
                  "\"\n}\n");
  EXPECT_EQ(ReadManifest(storage, 1).status().code(),
            absl::StatusCode::kUnimplemented);
  ASSERT_EQ(KeepLast(storage, 1), absl::OkStatus());
  EXPECT_THAT(IncompleteRounds(storage), ElementsAre(1));
}

// A checkpoint that a crash left half removed must not look complete.
TEST(CheckpointTest, CrashDuringRemovalLeavesOnlySoundCheckpointsComplete) {
  for (int64_t steps = 0;; ++steps) {
    SCOPED_TRACE(steps);
    SimulatedStorage storage(/*seed=*/static_cast<uint64_t>(steps));
    Write(storage, {10, 20, 30, 40});
    WritePart(storage, 15);
    storage.CrashAfterSteps(steps);
    const bool crashed = !KeepLast(storage, 2).ok();
    storage.Restart();
    const auto list = ListCheckpoints(storage);
    ASSERT_TRUE(list.ok()) << list.status();
    for (const IncompleteCheckpoint& checkpoint : list->incomplete) {
      EXPECT_EQ(checkpoint.why.code(), absl::StatusCode::kNotFound)
          << "it still has a manifest: " << checkpoint.why;
    }
    const std::vector<int64_t> left = CompleteRounds(storage);
    ASSERT_GE(left.size(), 2u);
    EXPECT_EQ(left[0], 40);
    EXPECT_EQ(left[1], 30);
    for (const int64_t round : left) {
      EXPECT_EQ(CheckTestCheckpoint(storage, *ReadManifest(storage, round),
                                    OfRound(round)),
                absl::OkStatus());
    }
    ASSERT_EQ(KeepLast(storage, 2), absl::OkStatus());
    EXPECT_THAT(CompleteRounds(storage), ElementsAre(40, 30));
    EXPECT_THAT(IncompleteRounds(storage), IsEmpty());
    if (!crashed) break;
    ASSERT_LT(steps, 100);
  }
}

}  // namespace
}  // namespace nereus
