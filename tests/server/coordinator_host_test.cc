// Tests of a coordinator that is started again, with the flags of the saved job
// or with other flags.

#include "server/process/coordinator_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/file_storage.h"
#include "tests/testing/some_state.h"

namespace nereus {
namespace {

using testing::HasSubstr;

// Starts coordinators with the flags of the job in SomeState. The state on disk
// says that the job runs.
class CoordinatorHostTest : public testing::Test {
 protected:
  CoordinatorHostTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    state_.state = JobState::kRunning;
    options_.spec.name = "training";
    options_.spec.shards = 2;
    options_.spec.workers = 2;
    options_.spec.options = state_.epoch.job->options;
    options_.checkpoint_dir = absl::StrCat(folder_, "/checkpoints");
    options_.state_file = absl::StrCat(folder_, "/state.db");
  }
  absl::Status Start() {
    {
      auto store = JobStore::Open(options_.state_file);
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE((*store)->Save(options_.spec.name, state_).ok());
    }
    std::unique_ptr<Storage> storage;
    if (!options_.checkpoint_dir.empty()) {
      auto opened = FileStorage::Open(options_.checkpoint_dir);
      EXPECT_TRUE(opened.ok()) << opened.status();
      storage = *std::move(opened);
    }
    return CoordinatorHost::Start(options_, storage.get(), settings_).status();
  }
  void ExpectRefusal(const std::string& why) {
    const absl::Status status = Start();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(options_.state_file));
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/host");
  CoordinatorState state_ = SomeState();
  ServerOptions options_;
  std::vector<Setting> settings_;
};

TEST_F(CoordinatorHostTest, GoesOnWithTheSameFlags) {
  const absl::Status status = Start();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CoordinatorHostTest, RefusesAnotherNumberOfServers) {
  options_.spec.shards = 1;
  ExpectRefusal("has 2 servers, --servers says 1");
  options_.spec.shards = 3;
  ExpectRefusal("has 2 servers, --servers says 3");
}

TEST_F(CoordinatorHostTest, GoesOnWithTheSavedPlaceOfTheOptimizer) {
  options_.spec.optimizer_by_worker = true;
  options_.spec.options.optimizer_place = OptimizerPlace::kServer;
  const absl::Status status = Start();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CoordinatorHostTest, RefusesAnotherOptimizer) {
  options_.spec.optimizer_by_worker = false;
  options_.spec.options.optimizer_place = OptimizerPlace::kServer;
  ExpectRefusal("is of --optimizer=worker");
  options_.spec.options = state_.epoch.job->options;
  options_.spec.options.optimizer.rule = UpdateRule::kAdam;
  ExpectRefusal("--update=sgd, the job's flags say worker and adam");
}

TEST_F(CoordinatorHostTest, RefusesOtherValuesOfTheJobsOptions) {
  options_.spec.options.optimizer.learning_rate = 0.5F;
  ExpectRefusal(
      "--learning-rate differs: the coordinator that is started has "
      "0.5, job training in ");
  options_.spec.options = state_.epoch.job->options;
  options_.spec.options.checkpoint_every += 1;
  ExpectRefusal("--checkpoint-every differs");
}

TEST_F(CoordinatorHostTest, RefusesAnotherFolderThanTheServersHave) {
  for (auto& member : state_.members) {
    member.request.settings = {{"--checkpoint-dir", "the folder a"}};
  }
  settings_ = {{"--checkpoint-dir", "the folder b"}};
  ExpectRefusal("--checkpoint-dir differs: ");
}

// The job may have found a better threshold than that of the flags.
TEST_F(CoordinatorHostTest, GoesOnWithTheFusionThatTheJobHas) {
  options_.spec.options.tune_fusion = true;
  options_.spec.options.fusion_bytes = 1 << 16;
  const absl::Status status = Start();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CoordinatorHostTest, RefusesToLoseTheFolderForCheckpoints) {
  options_.checkpoint_dir.clear();
  ExpectRefusal("has a folder for checkpoints, and --checkpoint-dir is empty");
}

TEST_F(CoordinatorHostTest, RefusesAFolderThatTheShardsDoNotHave) {
  for (auto& member : state_.members) member.request.has_checkpoints = false;
  state_.checkpoints.newest.reset();
  ExpectRefusal(
      absl::StrCat("has no folder for checkpoints, --checkpoint-dir "
                   "says ",
                   options_.checkpoint_dir));
}

TEST_F(CoordinatorHostTest, FinishedJobAllowsOtherFlagsForTheNextJob) {
  state_.state = JobState::kFinished;
  options_.spec.shards = 1;
  const absl::Status status = Start();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace nereus
