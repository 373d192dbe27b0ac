// Checkpoints survive a disk that fails and a machine that crashes, over many
// seeds.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/manifest.h"
#include "tests/simulation/simulated_storage.h"
#include "tests/testing/test_checkpoint.h"
#include "tests/testing/test_seed.h"

namespace nereus {
namespace {

TestCheckpoint OfRound(int64_t round) {
  return {.round = round,
          .shards = 1 + static_cast<int>(round % 3),
          .chunk_elements = 1 + round % 11,
          .rule = round % 2 == 0 ? UpdateRule::kSgd : UpdateRule::kAdam,
          .layers = AwkwardLayers()};
}

// Compares a checkpoint with its values. The chunks that it reads have another
// length than those that were written.
absl::Status Check(Storage& storage, const Manifest& manifest, Random& random) {
  TestCheckpoint checkpoint = OfRound(manifest.round);
  checkpoint.chunk_elements = 1 + static_cast<int64_t>(random.Below(30));
  return CheckTestCheckpoint(storage, manifest, checkpoint);
}

// Job that writes checkpoints and removes old ones. Its machine crashes now and
// then.
class CheckpointSimulation {
 public:
  CheckpointSimulation(uint64_t seed, SimulatedStorageOptions options)
      : random_(seed), storage_(seed, options) {}

  // Writes the next checkpoint. After a crash, the machine starts again.
  void Step() {
    const int64_t round = next_round_++;
    started_.insert(round);
    if (WriteTestCheckpoint(storage_, OfRound(round)).ok()) {
      completed_.insert(round);
    }
    if (random_.Chance(0.5)) {
      KeepLast(storage_, 2).IgnoreError();
    }
    if (!storage_.crashed()) return;
    storage_.Restart();
    ++crashes_;
  }

  int64_t NewestCompleted() const {
    return completed_.empty() ? -1 : *completed_.rbegin();
  }

  SimulatedStorage& storage() { return storage_; }
  Random& random() { return random_; }
  int crashes() const { return crashes_; }
  const std::set<int64_t>& started() const { return started_; }

 private:
  Random random_;
  SimulatedStorage storage_;
  std::set<int64_t> started_;
  std::set<int64_t> completed_;  // Rounds that were reported as written.
  int64_t next_round_ = 0;
  int crashes_ = 0;
};

TEST(CheckpointSimulationTest, NewestCompleteCheckpointSurvivesEveryCrash) {
  int crashes = 0;
  int torn = 0;
  for (const uint64_t seed : TestSeeds(80)) {
    SCOPED_TRACE(ReplayHint(seed));
    CheckpointSimulation simulation(seed, {.failure_probability = 0.05,
                                           .crash_probability = 0.02,
                                           .tears = true});
    for (int i = 0; i < 25; ++i) {
      simulation.Step();
      const auto list = ListCheckpoints(simulation.storage());
      ASSERT_TRUE(list.ok()) << list.status();
      // A checkpoint may be complete although its writer crashed before the
      // write returned. So the newest one on disk may be newer.
      const int64_t newest =
          list->complete.empty() ? -1 : list->complete[0].round;
      ASSERT_GE(newest, simulation.NewestCompleted());
      for (const int64_t round : simulation.started()) {
        torn += simulation.storage().torn(ManifestName(round)) ? 1 : 0;
      }
      for (const Manifest& manifest : list->complete) {
        ASSERT_FALSE(simulation.storage().torn(ManifestName(manifest.round)));
        ASSERT_TRUE(simulation.started().contains(manifest.round));
        ASSERT_EQ(VerifyCheckpoint(simulation.storage(), manifest),
                  absl::OkStatus());
        ASSERT_EQ(Check(simulation.storage(), manifest, simulation.random()),
                  absl::OkStatus());
      }
    }
    crashes += simulation.crashes();
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(crashes, 50);
    EXPECT_GT(torn, 20);
  }
}

// ListCheckpoints finds a torn file of another length. VerifyCheckpoint finds a
// torn file with zeros, by its checksum. A checkpoint without a finding has the
// right values.
TEST(CheckpointSimulationTest, FilesThatALyingDiskHasTornAreFound) {
  int torn = 0;
  int zeroed = 0;
  int sound = 0;
  for (const uint64_t seed : TestSeeds(80)) {
    SCOPED_TRACE(ReplayHint(seed));
    CheckpointSimulation simulation(seed,
                                    {.crash_probability = 0.02, .lies = true});
    for (int i = 0; i < 25; ++i) {
      simulation.Step();
      const auto list = ListCheckpoints(simulation.storage());
      ASSERT_TRUE(list.ok()) << list.status();
      torn += static_cast<int>(list->unfinished.size() + list->damaged.size());
      for (const Manifest& manifest : list->complete) {
        const absl::Status verified =
            VerifyCheckpoint(simulation.storage(), manifest);
        const absl::Status read =
            Check(simulation.storage(), manifest, simulation.random());
        ASSERT_EQ(read.code(), verified.code()) << read << verified;
        ASSERT_TRUE(verified.ok() || absl::IsDataLoss(verified)) << verified;
        ++(verified.ok() ? sound : zeroed);
      }
    }
  }
  if (TriesAllSeeds()) {
    EXPECT_GT(torn, 20);
    EXPECT_GT(zeroed, 20);
    EXPECT_GT(sound, 500);
  }
}

// The test crashes the machine at every step of writing a checkpoint beside an
// older one.
TEST(CheckpointSimulationTest, CrashAtAnyStepOfWritingKeepsTheOlderCheckpoint) {
  for (int64_t steps = 0;; ++steps) {
    SCOPED_TRACE(steps);
    Random random(static_cast<uint64_t>(steps));
    SimulatedStorage storage(random.Next());
    ASSERT_TRUE(WriteTestCheckpoint(storage, OfRound(10)).ok());
    storage.CrashAfterSteps(steps);
    const bool crashed = !WriteTestCheckpoint(storage, OfRound(11)).ok();
    storage.Restart();
    const auto list = ListCheckpoints(storage);
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_FALSE(list->complete.empty());
    EXPECT_EQ(list->complete.back().round, 10);
    for (const Manifest& manifest : list->complete) {
      EXPECT_EQ(Check(storage, manifest, random), absl::OkStatus());
    }
    // The job does this round again, and writes its checkpoint again.
    if (list->complete.size() == 1) {
      ASSERT_EQ(WriteTestCheckpoint(storage, OfRound(11)).status(),
                absl::OkStatus());
    }
    EXPECT_EQ(Check(storage, *ReadManifest(storage, 11), random),
              absl::OkStatus());
    if (!crashed) break;
    ASSERT_LT(steps, 100);
  }
}

}  // namespace
}  // namespace nereus
