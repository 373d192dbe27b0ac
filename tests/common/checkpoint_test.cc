// The folders of a storage with checkpoints: the list of complete,
// unfinished and damaged checkpoints, and the removal of old ones. The last
// test crashes the removal after each of its steps.

#include "common/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/crc32c.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/shard_writer.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

using ::testing::AllOf;
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

CheckpointList List(Storage& storage) {
  const auto list = ListCheckpoints(storage);
  EXPECT_TRUE(list.ok()) << list.status();
  return *list;
}

template <typename Checkpoint>
std::vector<int64_t> RoundsOf(const std::vector<Checkpoint>& checkpoints) {
  std::vector<int64_t> rounds;
  for (const Checkpoint& each : checkpoints) rounds.push_back(each.round);
  return rounds;
}

std::vector<int64_t> CompleteRounds(Storage& storage) {
  return RoundsOf(List(storage).complete);
}
std::vector<int64_t> UnfinishedRounds(Storage& storage) {
  return RoundsOf(List(storage).unfinished);
}
std::vector<int64_t> DamagedRounds(Storage& storage) {
  return RoundsOf(List(storage).damaged);
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

TEST(CheckpointLayoutTest, FileNamesHoldTheShardTheEpochAndTheJob) {
  const ShardFile file = {0, 1, 2, 7, 0x1a2b3c4d};
  EXPECT_EQ(ShardFileName(file), "shard-1-of-2-epoch-7-1a2b3c4d.safetensors");
  EXPECT_EQ(ParseShardFileName("shard-1-of-2-epoch-7-1a2b3c4d.safetensors"),
            file);
  // Older versions of Nereus left out the job.
  EXPECT_EQ(ParseShardFileName("shard-1-of-2-epoch-7.safetensors"),
            (ShardFile{0, 1, 2, 7, 0}));
  for (const char* name :
       {"", "shard-1-of-2-epoch-7", "shard-1-of-2-epoch-7-1a2b3c4.safetensors",
        "shard-1-of-2-epoch-7-1A2B3C4D.safetensors",
        "shard-01-of-2-epoch-7.safetensors", "shard-1-of-2-epoch-.safetensors",
        "shard-1-in-2-epoch-7.safetensors", "other.safetensors"}) {
    EXPECT_EQ(ParseShardFileName(name), std::nullopt) << name;
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
  EXPECT_THAT(UnfinishedRounds(storage), IsEmpty());
  const auto manifest = ReadManifest(storage, 20);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->round, 20);
  EXPECT_EQ(VerifyCheckpoint(storage, *manifest), absl::OkStatus());
}

TEST(CheckpointTest, UnusableCheckpointsAreListedWithTheReason) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1, 2, 3, 4, 5});
  WritePart(storage, 6);
  ASSERT_TRUE(
      storage
          .RemoveFile(
              "round-000000000002/shard-1-of-2-epoch-0-00000000.safetensors")
          .ok());
  storage
      .Contents("round-000000000003/shard-0-of-2-epoch-0-00000000.safetensors")
      .pop_back();
  storage.Contents(ManifestName(4)).pop_back();
  storage.Contents(ManifestName(5)) = storage.Contents(ManifestName(1));
  const auto list = ListCheckpoints(storage);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(1));
  EXPECT_THAT(RoundsOf(list->unfinished), ElementsAre(6));
  EXPECT_THAT(list->unfinished[0].why, IsNotFound("it has no manifest"));
  ASSERT_THAT(RoundsOf(list->damaged), ElementsAre(5, 4, 3, 2));
  const char* kReasons[] = {
      "manifest.json is of round 1, not 5", "torn or changed",
      "bytes, the manifest says",
      "shard-1-of-2-epoch-0-00000000.safetensors is missing"};
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    const UnusableCheckpoint& damaged = list->damaged[i];
    EXPECT_EQ(damaged.folder, CheckpointFolder(damaged.round));
    EXPECT_THAT(damaged.why, IsDataLoss(kReasons[i]));
  }
}

TEST(CheckpointTest, DamagedCheckpointIsNewestOnlyIfNoCompleteOneIsNewer) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1, 2, 3});
  storage.Contents(ManifestName(2)).pop_back();
  EXPECT_EQ(ListCheckpoints(storage)->NewestIfDamaged(), nullptr);
  storage.Contents(ManifestName(3)).pop_back();
  auto list = *ListCheckpoints(storage);
  ASSERT_NE(list.NewestIfDamaged(), nullptr);
  EXPECT_EQ(list.NewestIfDamaged()->round, 3);
  storage.Contents(ManifestName(1)).pop_back();
  list = *ListCheckpoints(storage);
  ASSERT_NE(list.NewestIfDamaged(), nullptr);
  EXPECT_EQ(list.NewestIfDamaged()->round, 3);
}

TEST(CheckpointTest, RoundOfAFolderSetAsideIsWrittenAgain) {
  SimulatedStorage storage(/*seed=*/0);
  for (const char* folder :
       {"set-aside-round-000000000007", "set-aside-round-000000000007-2"}) {
    Write(storage, {7});
    const auto name = SetAside(storage, 7);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(*name, folder);
    EXPECT_TRUE(storage.FileBytes(*name + "/manifest.json").ok());
    EXPECT_THAT(CompleteRounds(storage), IsEmpty());
  }
  EXPECT_EQ(SetAside(storage, 7).status().code(), absl::StatusCode::kNotFound);
  Write(storage, {7});
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(7));
  EXPECT_EQ(KeepLast(storage, 1), absl::OkStatus());
  EXPECT_TRUE(storage.List("set-aside-round-000000000007-2").ok());
}

TEST(CheckpointTest, OtherFoldersAreNotListed) {
  SimulatedStorage storage(/*seed=*/0);
  ASSERT_TRUE(storage.WriteFile("round-000000000007", {}).ok());
  ASSERT_TRUE(storage.WriteFile("other/manifest.json", {}).ok());
  EXPECT_THAT(CompleteRounds(storage), IsEmpty());
  EXPECT_THAT(UnfinishedRounds(storage), IsEmpty());
  EXPECT_THAT(DamagedRounds(storage), IsEmpty());
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

// A coordinator that does not know whether it has written a manifest writes it
// again. Another job's manifest stays.
TEST(CheckpointTest, ManifestReplacesNoOther) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {1});
  Manifest manifest = *ReadManifest(storage, 1);
  EXPECT_EQ(WriteManifest(storage, manifest), absl::OkStatus());
  const std::string job = std::exchange(manifest.job, "another");
  const absl::Status refused = WriteManifest(storage, manifest);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr("manifest.json exists and is another one: of job " + job),
            HasSubstr("Do two jobs write to this folder?")));
  EXPECT_EQ(ReadManifest(storage, 1)->job, job);
}

TEST(CheckpointTest, RemovalKeepsNewestAndUnfinishedCheckpoints) {
  SimulatedStorage storage(/*seed=*/0);
  Write(storage, {10, 20, 30, 40});
  for (const int64_t round : {5, 25, 45}) WritePart(storage, round);
  ASSERT_EQ(KeepLast(storage, 2), absl::OkStatus());
  EXPECT_THAT(CompleteRounds(storage), ElementsAre(40, 30));
  EXPECT_THAT(UnfinishedRounds(storage), ElementsAre(45));
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
  EXPECT_THAT(UnfinishedRounds(storage), ElementsAre(2, 1));
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
  EXPECT_THAT(DamagedRounds(storage), ElementsAre(1));
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
    EXPECT_THAT(RoundsOf(list->damaged), IsEmpty());
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
    EXPECT_THAT(UnfinishedRounds(storage), IsEmpty());
    if (!crashed) break;
    ASSERT_LT(steps, 100);
  }
}

}  // namespace
}  // namespace nereus
