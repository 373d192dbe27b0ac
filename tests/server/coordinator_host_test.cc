// Tests of a coordinator that is started again, with the flags of the saved job
// or with other flags.

#include "server/process/coordinator_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/checkpoint/file_storage.h"
#include "common/checkpoint/manifest.h"
#include "server/process/checkpoint_files.h"
#include "tests/testing/some_state.h"
#include "tests/testing/test_checkpoint.h"

namespace nereus {
namespace {

using testing::AllOf;
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
    if (!options_.state_file.empty()) {
      auto store = JobStore::Open(options_.state_file);
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE((*store)->Save(options_.spec.name, state_).ok());
    }
    std::shared_ptr<Storage> storage;
    if (!options_.checkpoint_dir.empty()) storage = OpenStorage();
    return CoordinatorHost::Start(options_, storage, settings_,
                                  [this](const std::string& text) {
                                    const std::lock_guard lock(mu_);
                                    told_.push_back(text);
                                  })
        .status();
  }
  std::shared_ptr<Storage> OpenStorage() {
    auto opened = FileStorage::Open(options_.checkpoint_dir);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
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
  std::mutex mu_;
  std::vector<std::string> told_;  // Texts about long work. Guarded by mu_.
};

// Flags of the coordinator that is started again, in place of the job's.
struct Flags {
  const char* name;
  std::function<void(ServerOptions&)> edit;
  const char* refusal;  // Null: the job goes on.
};

class CoordinatorFlagsTest : public CoordinatorHostTest,
                             public testing::WithParamInterface<Flags> {};

TEST_P(CoordinatorFlagsTest, JobGoesOnOrIsRefusedWithTheReason) {
  GetParam().edit(options_);
  if (GetParam().refusal != nullptr) {
    ExpectRefusal(GetParam().refusal);
    return;
  }
  const absl::Status status = Start();
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(
    All, CoordinatorFlagsTest,
    testing::Values(
        Flags{"SameFlags", [](auto&) {}, nullptr},
        Flags{"FewerServers", [](auto& o) { o.spec.shards = 1; },
              "has 2 servers, --servers says 1"},
        Flags{"MoreServers", [](auto& o) { o.spec.shards = 3; },
              "has 2 servers, --servers says 3"},
        Flags{"AnyPlaceOfTheOptimizer",
              [](auto& o) {
                o.spec.optimizer_by_worker = true;
                o.spec.options.optimizer_place = OptimizerPlace::kServer;
              },
              nullptr},
        Flags{"OtherPlaceOfTheOptimizer",
              [](auto& o) {
                o.spec.optimizer_by_worker = false;
                o.spec.options.optimizer_place = OptimizerPlace::kServer;
              },
              "is of --optimizer=worker"},
        Flags{"OtherOptimizer",
              [](auto& o) {
                o.spec.optimizer_by_worker = false;
                o.spec.options.optimizer.rule = UpdateRule::kAdam;
              },
              "--update=sgd, the job's flags say worker and adam"},
        Flags{"OtherLearningRate",
              [](auto& o) { o.spec.options.optimizer.learning_rate = 0.5F; },
              "--learning-rate differs: the coordinator that is started has "
              "0.5, job training in "},
        Flags{"OtherCheckpoints",
              [](auto& o) { o.spec.options.checkpoint_every += 1; },
              "--checkpoint-every differs"},
        // The job may have found a better threshold than that of the flags.
        Flags{"TunedFusion",
              [](auto& o) {
                o.spec.options.tune_fusion = true;
                o.spec.options.fusion_bytes = 1 << 16;
              },
              nullptr},
        Flags{"NoFolder", [](auto& o) { o.checkpoint_dir.clear(); },
              "has a folder for checkpoints, and --checkpoint-dir is empty"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(CoordinatorHostTest, RefusesAnotherFolderThanTheServersHave) {
  for (auto& member : state_.members) {
    member.request.settings = {{"--checkpoint-dir", "the folder a"}};
  }
  settings_ = {{"--checkpoint-dir", "the folder b"}};
  ExpectRefusal("--checkpoint-dir differs: ");
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

// The coordinator was killed after it had saved the end, and is started again.
TEST_F(CoordinatorHostTest, JobThatIsOverStaysOverWithOnce) {
  options_.once = true;
  for (const JobState state : {JobState::kFinished, JobState::kFailed}) {
    state_.state = state;
    ASSERT_EQ(Start(), absl::OkStatus());
    const std::shared_ptr<Storage> storage = OpenStorage();
    auto host = CoordinatorHost::Start(options_, storage, settings_,
                                       [](const std::string&) {});
    ASSERT_TRUE(host.ok()) << host.status();
    EXPECT_EQ((*host)->service().AwaitEnd().code(),
              state == JobState::kFinished ? absl::StatusCode::kOk
                                           : absl::StatusCode::kAborted);
  }
}

// Starts coordinators of new jobs in a folder with the checkpoints of rounds
// 10, 20 and 30, by an optimizer of the workers.
class RestoreTest : public CoordinatorHostTest {
 protected:
  RestoreTest() {
    options_.state_file.clear();
    options_.spec.optimizer_by_worker = true;
    options_.spec.options.optimizer.rule = UpdateRule::kSgd;
    storage_ = OpenStorage();
    for (const int64_t round : {10, 20, 30}) {
      const auto written =
          WriteTestCheckpoint(*storage_, {.round = round,
                                          .shards = 2,
                                          .layers = AwkwardLayers(),
                                          .callers_arrays = 1});
      EXPECT_TRUE(written.ok()) << written.status();
    }
  }
  std::string PathOf(int64_t round, const std::string& file) const {
    return absl::StrCat(options_.checkpoint_dir, "/", CheckpointFolder(round),
                        "/", file);
  }
  void Truncate(int64_t round) {
    std::filesystem::resize_file(PathOf(round, "manifest.json"), 300);
  }
  // Changes one byte of shard 1's file. Its length stays.
  void ChangeByte(int64_t round) {
    const auto found = FindRound(*storage_, round);
    ASSERT_TRUE(found.ok()) << found.status();
    std::fstream file(PathOf(round, found->manifest.files[1].name),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
  }
  std::vector<std::string> Folders() {
    std::vector<std::string> names;
    const auto entries = storage_->List("");
    EXPECT_TRUE(entries.ok()) << entries.status();
    for (const StorageEntry& entry : *entries) {
      if (entry.is_folder) names.push_back(entry.name);
    }
    return names;
  }

  std::shared_ptr<Storage> storage_;
};

TEST_F(RestoreTest, LatestIsTheNewestCheckpoint) {
  options_.restore = "latest";
  EXPECT_EQ(Start(), absl::OkStatus());
  EXPECT_EQ(Folders().size(), 3u);
  ASSERT_FALSE(told_.empty());
  EXPECT_THAT(told_.front(),
              HasSubstr("verifying the checkpoint of round 30, 0 of "));
}

// The checkpoint of round 30 has a torn manifest, and that of round 20 a
// changed byte.
TEST_F(RestoreTest, LatestPassesOverDamagedCheckpoints) {
  options_.restore = "latest";
  Truncate(30);
  ChangeByte(20);
  testing::internal::CaptureStderr();
  EXPECT_EQ(Start(), absl::OkStatus());
  FlushLog(kLogFlushLimit);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("the checkpoint of round 30 is damaged: "),
                    HasSubstr("torn or changed"), HasSubstr("costs 20 steps"),
                    HasSubstr("the checkpoint of round 20 is damaged: "
                              "round-000000000020/shard-1-of-2-epoch-0"),
                    HasSubstr("that of round 10, which costs 10 steps")));
  EXPECT_THAT(Folders(), testing::ElementsAre("round-000000000010",
                                              "set-aside-round-000000000020",
                                              "set-aside-round-000000000030"));
}

// A job that is started again by a script must not begin anew.
TEST_F(RestoreTest, LatestIsRefusedIfAllCheckpointsAreDamaged) {
  options_.restore = "latest";
  Truncate(30);
  for (const int64_t round : {10, 20}) ChangeByte(round);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Start();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("all checkpoints are damaged: that of round 30: "),
              HasSubstr("; that of round 20: "),
              HasSubstr("; that of round 10: ")));
  }
  EXPECT_EQ(Folders().size(), 3u);
}

TEST_F(RestoreTest, DamagedCheckpointThatIsNamedIsRefused) {
  options_.restore = "20";
  Truncate(20);
  const absl::Status status = Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("; --restore=ROUND takes another one: 30, 10"));
  EXPECT_EQ(Folders().size(), 3u);
}

TEST_F(RestoreTest, CheckpointsAfterTheNamedOneAreSetAside) {
  options_.restore = "10";
  Truncate(30);
  EXPECT_EQ(Start(), absl::OkStatus());
  EXPECT_THAT(Folders(), testing::ElementsAre("round-000000000010",
                                              "set-aside-round-000000000020",
                                              "set-aside-round-000000000030"));
}

// The files may be of a crash, or of a copy that is not whole.
TEST_F(RestoreTest, CheckpointsWithoutAManifestAreSetAside) {
  options_.restore = "latest";
  std::filesystem::remove(PathOf(30, "manifest.json"));
  EXPECT_EQ(Start(), absl::OkStatus());
  EXPECT_THAT(Folders(),
              testing::ElementsAre("round-000000000010", "round-000000000020",
                                   "set-aside-round-000000000030"));
  for (const int64_t round : {10, 20}) {
    std::filesystem::remove(PathOf(round, "manifest.json"));
  }
  EXPECT_EQ(Start(), absl::OkStatus());
  EXPECT_THAT(Folders(), testing::ElementsAre("set-aside-round-000000000010",
                                              "set-aside-round-000000000020",
                                              "set-aside-round-000000000030"));
}

TEST_F(RestoreTest, NewJobIsRefusedThoughAllCheckpointsAreDamaged) {
  for (const int64_t round : {10, 20, 30}) Truncate(round);
  const absl::Status status = Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has a damaged checkpoint of round 30"));
}

TEST_F(RestoreTest, RunningJobSetsItsDamagedCheckpointAside) {
  options_.state_file = absl::StrCat(folder_, "/state.db");
  Truncate(30);
  EXPECT_EQ(Start(), absl::OkStatus());
  EXPECT_THAT(Folders(),
              testing::ElementsAre("round-000000000010", "round-000000000020",
                                   "set-aside-round-000000000030"));
}

// The manifest of round 30 was written when the job had gone back without it,
// in epoch 5, and the coordinator had died.
TEST_F(RestoreTest, RunningJobRemovesALateManifest) {
  options_.state_file = absl::StrCat(folder_, "/state.db");
  state_.checkpoints.newest->round = 20;
  for (const uint64_t restarted_in : {0, 5}) {
    state_.checkpoints.restarted_in = restarted_in;
    ASSERT_EQ(UpdateNewest(*storage_, "test", /*job_id=*/0, state_.checkpoints),
              absl::OkStatus());
    EXPECT_EQ(state_.checkpoints.newest->round, restarted_in == 0 ? 30 : 20);
    state_.checkpoints.newest->round = 20;
  }
  EXPECT_FALSE(std::filesystem::exists(PathOf(30, "manifest.json")));
  // Its files stay, and so does a manifest that the job knows.
  EXPECT_EQ(Folders().size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(PathOf(20, "manifest.json")));
}

// The coordinator has set it aside or removed it while this server was slow.
TEST(ReadPartTest, CheckpointThatIsGoneCountsAsDamaged) {
  const auto storage = FileStorage::Open(testing::TempDir());
  ASSERT_TRUE(storage.ok()) << storage.status();
  LoadCheckpoint load;
  load.round = 7;
  const absl::Status read = ReadPart(**storage, load, [](int64_t, int64_t) {});
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  EXPECT_THAT(std::string(read.message()),
              HasSubstr("round-000000000007/manifest.json"));
}

}  // namespace
}  // namespace nereus
