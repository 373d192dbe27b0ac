#include "tests/simulation/simulated_storage.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

absl::Status Write(SimulatedStorage& storage, const std::string& name,
                   std::string text) {
  return storage.WriteFile(name, {Buffer::View(text.data(), std::ssize(text))});
}

TEST(SimulatedStorageTest, CrashLeavesTheOldOrTheNewFile) {
  int old_files = 0;
  int torn_files = 0;
  for (int64_t steps = 0; steps < 4; ++steps) {
    SCOPED_TRACE(steps);
    SimulatedStorage storage(/*seed=*/1);
    ASSERT_TRUE(Write(storage, "file", "old").ok());
    storage.CrashAfterSteps(steps);
    EXPECT_EQ(Write(storage, "file", "brand new").code(),
              absl::StatusCode::kUnavailable);
    EXPECT_TRUE(storage.crashed());
    EXPECT_EQ(storage.FileBytes("file").status().code(),
              absl::StatusCode::kUnavailable);
    storage.Restart();
    EXPECT_TRUE(storage.Contents("file") == "old" ||
                storage.Contents("file") == "brand new");
    old_files += storage.Contents("file") == "old" ? 1 : 0;
    const auto entries = storage.List("");
    for (const StorageEntry& entry : *entries) {
      torn_files += absl::EndsWith(entry.name, kTemporarySuffix) ? 1 : 0;
    }
  }
  EXPECT_EQ(old_files, 3);
  EXPECT_EQ(torn_files, 2);
}

TEST(SimulatedStorageTest, RequestedFailureHappensOnce) {
  SimulatedStorage storage(/*seed=*/0);
  storage.FailNext(ResourceExhaustedError("full"));
  EXPECT_EQ(Write(storage, "file", "1").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(storage.List("")->empty());
  EXPECT_TRUE(Write(storage, "file", "1").ok());
}

TEST(SimulatedStorageTest, FaultsAreDrawnFromTheSeed) {
  const auto run = [](uint64_t seed) {
    SimulatedStorage storage(
        seed, {.failure_probability = 0.3, .crash_probability = 0.1});
    std::vector<absl::StatusCode> codes;
    for (int i = 0; i < 50; ++i) {
      if (storage.crashed()) storage.Restart();
      codes.push_back(Write(storage, "file", "text").code());
    }
    return codes;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

TEST(SimulatedStorageTest, LyingDiskTearsOnlyItsLastFiles) {
  int torn = 0;
  int zeroed = 0;
  for (const uint64_t seed : TestSeeds(50)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedStorage storage(seed, {.lies = true, .unflushed_files_max = 2});
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(Write(storage, name, "contents").ok());
    }
    storage.CrashAfterSteps(0);
    EXPECT_FALSE(Write(storage, "d", "contents").ok());
    storage.Restart();
    EXPECT_EQ(storage.Contents("a"), "contents");
    for (const char* name : {"b", "c"}) {
      const std::string left = storage.Contents(name);
      const std::string kept = left.substr(0, left.find('\0'));
      EXPECT_TRUE(absl::StartsWith("contents", kept));
      EXPECT_TRUE(left == kept || left.size() == 8) << left.size();
      torn += left == "contents" ? 0 : 1;
      zeroed += left != kept ? 1 : 0;
    }
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(torn, zeroed);
    EXPECT_GT(zeroed, 0);
  }
}

TEST(SimulatedStorageTest, CrashTearsTheFileBeingWritten) {
  const std::string before(200, '1');
  const std::string contents(200, '2');
  int cut = 0;
  int stale = 0;
  int wrong_digits = 0;
  for (const uint64_t seed : TestSeeds(100)) {
    SCOPED_TRACE(ReplayHint(seed));
    SimulatedStorage storage(seed, {.tears = true});
    ASSERT_TRUE(Write(storage, "a/file", before).ok());
    storage.CrashAfterSteps(static_cast<int64_t>(seed % 4));
    EXPECT_FALSE(Write(storage, "b/file", contents).ok());
    storage.Restart();
    EXPECT_EQ(storage.Contents("a/file"), before);
    EXPECT_FALSE(storage.torn("a/file"));
    if (!storage.torn("b/file")) continue;
    const std::string left = storage.Contents("b/file");
    EXPECT_NE(left, contents);
    cut += left.size() < contents.size() ? 1 : 0;
    stale += absl::StrContains(left, "1") ? 1 : 0;
    wrong_digits += absl::StrContains(left, "3") ? 1 : 0;
    ASSERT_TRUE(Write(storage, "b/file", contents).ok());
    EXPECT_FALSE(storage.torn("b/file"));
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(cut, 10);
    EXPECT_GT(stale, 10);
    EXPECT_GT(wrong_digits, 10);
  }
}

}  // namespace
}  // namespace nereus
