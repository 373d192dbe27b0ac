// Rules for a process that joins a job, one by one.
// coordinator_test.cc checks that a coordinator applies the rules.

#include "server/coordinator/join_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tests/server/coordinator_driver.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A job before it runs: worker "first" is there, and worker "second" and
// shard 1 ask to join. Tests change what differs.
struct Newcomers {
  CoordinatorOptions options = OptionsOf(/*workers=*/2, /*shards=*/2);
  JoinRequest first = WorkerRequest("first");
  JoinRequest second = WorkerRequest("second");
  JoinRequest shard = ShardRequest(1);

  // Result of CheckJoin for `request` as the first worker.
  absl::Status CheckFirst(const JoinRequest& request) const {
    return CheckJoin(request,
                     {options, JobState::kWaiting, "", nullptr, MemberList()});
  }
  // Result after the first worker has joined. `job`: null before it runs.
  absl::Status Check(const JoinRequest& request,
                     const Job* job = nullptr) const {
    MemberList roster;
    roster.Add(first, /*session=*/0, /*running=*/false, absl::UnixEpoch());
    const JobState state =
        job == nullptr ? JobState::kWaiting : JobState::kRunning;
    return CheckJoin(request, {options, state, "", job, roster});
  }
};

void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                   const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

void ExpectUnlike(const absl::Status& status, const std::string& message) {
  ExpectRefused(status, absl::StatusCode::kFailedPrecondition, message);
}

class JoinRulesTest : public testing::Test, protected Newcomers {};

// Worker "second" after an edit. Without messages it may join.
struct Second {
  const char* name;
  std::function<void(Newcomers&)> edit;
  std::vector<const char*> messages;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
};

class SecondWorkerRuleTest : public testing::TestWithParam<Second> {};

TEST_P(SecondWorkerRuleTest, JoinsOrIsRefusedWithTheReason) {
  Newcomers all;
  GetParam().edit(all);
  const absl::Status status = all.Check(all.second);
  EXPECT_EQ(status.ok(), GetParam().messages.empty()) << status;
  for (const char* const message : GetParam().messages) {
    ExpectRefused(status, GetParam().code, message);
  }
  EXPECT_TRUE(all.Check(all.shard).ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, SecondWorkerRuleTest,
    testing::Values(
        Second{"LikeTheFirst", [](auto&) {}, {}},
        Second{"NoIncarnation",
               [](auto& all) { all.second.incarnation = 0; },
               {"incarnation must not be 0"},
               absl::StatusCode::kInvalidArgument},
        Second{"SettingsInAnotherOrder",
               [](auto& all) {
                 all.first.settings = {{"--batch", "32"}, {"--seed", "1"}};
                 all.second.settings = {{"--seed", "1"}, {"--batch", "32"}};
               },
               {}},
        Second{"SettingThatOnlyTheFirstHas",
               [](auto& all) {
                 all.first.settings = {{"--batch", "32"}};
               },
               {"--batch differs: worker second has none, worker first has "
                "32"}},
        Second{"SecondOptimizer",
               [](auto& all) {
                 all.options.spec.optimizer_by_worker = false;
                 all.second.caller.optimizer = OptimizerPlace::kWorker;
               },
               {"worker second has optimizer=worker, the job server: both "
                "would update the parameters",
                "--optimizer=worker"}},
        Second{"NoOptimizer",
               [](auto& all) {
                 all.options.spec.optimizer_by_worker = false;
                 all.options.spec.options.optimizer_place =
                     OptimizerPlace::kWorker;
                 all.second.caller.optimizer = OptimizerPlace::kServer;
               },
               {"worker second has optimizer=server, the job worker: no "
                "process would update the parameters",
                "ClientOptions::optimizer", "--optimizer=server"}},
        Second{"OtherShape",
               [](auto& all) {
                 all.second.layers[1] = FactorLayer("fc", 64, 65, true, 2);
               },
               {"layer 1 of worker first is fc fc 64x64, 4160 parameters, 2 "
                "rows, with factors; ours is fc fc 64x65, 4224 parameters"}},
        Second{"LayerWithoutFactors",
               [](auto& all) { all.second.layers[1].has_factors = false; },
               {"2 rows, with factors; ours is fc fc 64x64, 4160 parameters, "
                "2 rows"}},
        Second{"NoLayers",
               [](auto& all) { all.second.layers.clear(); },
               {"0 layers"},
               absl::StatusCode::kInvalidArgument},
        Second{"OtherProducts",
               [](auto& all) { all.second.products = "gpu/fp32"; },
               {"second multiplies factors on \"gpu/fp32\", worker first on "
                "\"cpu\"",
                "--device", "--scheme=server"}},
        Second{"OtherProductsBeforeTheRowsAreKnown",
               [](auto& all) {
                 all.first.layers[1].rows = kRowsNotKnown;
                 all.second.layers[1].rows = kRowsNotKnown;
                 all.second.products = "gpu";
               },
               {"their replicas would differ"}},
        Second{"OtherProductsWithoutFactors",
               [](auto& all) {
                 all.first.layers[1].has_factors = false;
                 all.second.layers[1].has_factors = false;
                 all.second.products = "gpu/fp32";
               },
               {}},
        Second{"OtherProductsByServers",
               [](auto& all) {
                 all.options.spec.rules.forced = Scheme::kServer;
                 all.second.products = "gpu/fp32";
               },
               {}}),
    [](const auto& info) { return std::string(info.param.name); });

// Texts and versions.

struct BadText {
  const char* name;
  std::function<void(JoinRequest&)> spoil;
  const char* message;
};

class JoinRulesTextTest : public testing::TestWithParam<BadText> {};

TEST_P(JoinRulesTextTest, IsRefusedByTheNameOfTheField) {
  JoinRequest request = WorkerRequest("second");
  GetParam().spoil(request);
  ExpectRefused(Newcomers().Check(request), absl::StatusCode::kInvalidArgument,
                GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, JoinRulesTextTest,
    testing::Values(
        BadText{"Name", [](auto& r) { r.name = "a b"; }, "a member's name"},
        BadText{"NoName", [](auto& r) { r.name.clear(); }, "not \"\""},
        BadText{"LongName", [](auto& r) { r.name.assign(257, 'x'); },
                "a member's name must be 1 to 256 printable characters"},
        BadText{"NameBeyondAscii", [](auto& r) { r.name = "b\xc3\xa4"; },
                "a member's name"},
        BadText{"AddressWithAControlCharacter",
                [](auto& r) { r.data_address = "\x1b[31m:1"; },
                "a member's data address"},
        BadText{"Build", [](auto& r) { r.build = "\n"; }, "a member's build"},
        BadText{"Job", [](auto& r) { r.job = ""; }, "a member's job"},
        BadText{"Address", [](auto& r) { r.data_address = ""; },
                "a member's data address"},
        BadText{"Products", [](auto& r) { r.products = "g p u"; },
                "a member's products"},
        BadText{"Node", [](auto& r) { r.host.node = "rack 1"; },
                "a member's node must be 1 to 256 printable characters"},
        BadText{"LongNode",
                [](auto& r) { r.host.node = std::string(257, 'x'); },
                "a member's node must be"},
        BadText{"Machine", [](auto& r) { r.host.machine = "m\nforged"; },
                "a member's machine must be"},
        BadText{"SettingName",
                [](auto& r) {
                  r.settings = {{"--batch size", "32"}};
                },
                "a member's setting's name"},
        BadText{"SettingWithoutAName",
                [](auto& r) {
                  r.settings = {{"", "32"}};
                },
                "a member's setting's name"},
        BadText{"SettingValue",
                [](auto& r) {
                  r.settings = {{"--batch", "32\nforged"}};
                },
                "a member's setting's value"},
        BadText{"LongSettingValue",
                [](auto& r) {
                  r.settings = {{"--data", std::string(257, 'x')}};
                },
                "at most 256 printable characters, not 257"},
        BadText{"TooManySettings",
                [](auto& r) { r.settings.resize(kSettingsMax + 1); },
                "second has 65 settings, at most 64"}),
    [](const auto& info) { return std::string(info.param.name); });

// The trainer's value of --data has spaces.
TEST_F(JoinRulesTest, SettingsValueMayHaveSpacesAndMayBeEmpty) {
  JoinRequest request = WorkerRequest("second");
  request.settings = {{"--data", "9 images, checksum 7"}, {"--trace", ""}};
  EXPECT_TRUE(Newcomers().CheckFirst(request).ok())
      << Newcomers().CheckFirst(request);
  request.settings.assign(kSettingsMax, {"--batch", "32"});
  EXPECT_TRUE(Newcomers().CheckFirst(request).ok())
      << Newcomers().CheckFirst(request);
}

TEST_F(JoinRulesTest, AnotherProtocolVersionIsRefusedWithBothVersions) {
  JoinRequest request = WorkerRequest("second");
  const uint32_t ours = request.protocol_version;
  request.protocol_version = ours + 1;
  request.build = "9.9.9";
  ExpectUnlike(Newcomers().Check(request),
               absl::StrCat("second (build 9.9.9) speaks ", ours + 1,
                            ", the coordinator (build "));
  EXPECT_THAT(std::string(Newcomers().Check(request).message()),
              testing::EndsWith(absl::StrCat(" speaks ", ours)));
}

// Settings.

struct Difference {
  const char* name;
  Setting firsts;
  Setting seconds;
  const char* message;
};

class JoinRulesSettingTest : public testing::TestWithParam<Difference> {
 protected:
  JoinRulesSettingTest() {
    // All others are equal.
    all_.first.settings = {{"--model", "cnn"}, {"--limit", "0"}};
    all_.second.settings = all_.first.settings;
    all_.first.settings.push_back(GetParam().firsts);
    all_.second.settings.push_back(GetParam().seconds);
  }
  Newcomers all_;
};

TEST_P(JoinRulesSettingTest, IsRefusedByTheNameOfTheFlagWithBothValues) {
  ExpectUnlike(all_.Check(all_.second), GetParam().message);
}

TEST_P(JoinRulesSettingTest, EqualSettingPasses) {
  all_.second.settings.back() = GetParam().firsts;
  EXPECT_TRUE(all_.Check(all_.second).ok()) << all_.Check(all_.second);
}

// Shards compute nothing, and have no such settings.
TEST_P(JoinRulesSettingTest, ShardsNeedNotHaveTheSetting) {
  all_.shard.settings.clear();
  EXPECT_TRUE(all_.Check(all_.shard).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Flags, JoinRulesSettingTest,
    testing::Values(
        Difference{"Batch",
                   {"--batch", "32"},
                   {"--batch", "64"},
                   "--batch differs: worker second has 64, worker first has "
                   "32; all processes of a job must have the same value"},
        Difference{"Seed",
                   {"--seed", "1"},
                   {"--seed", "7"},
                   "--seed differs: worker second has 7, worker first has 1"},
        Difference{"Epochs",
                   {"--epochs", "8"},
                   {"--epochs", "3"},
                   "--epochs differs: worker second has 3, worker first has 8"},
        Difference{"Data",
                   {"--data", "200 images with checksum 00ab12cd"},
                   {"--data", "200 images with checksum 00ab12ce"},
                   "--data differs: worker second has 200 images with checksum "
                   "00ab12ce, worker first has 200 images with checksum "
                   "00ab12cd"},
        // Two programs that have different flags.
        Difference{"OneThatTheOtherLacks",
                   {"--schedule", "cosine"},
                   {"--warmup", "5"},
                   "--warmup differs: worker second has 5, worker first has "
                   "none"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(JoinRulesTest, ServersSettingThatDiffersFromTheCoordinatorsIsRefused) {
  options.server_settings = {{"--servers", "2"}, {"--backup", "1"}};
  shard.settings = {{"--servers", "2"}, {"--backup", "0"}};
  ExpectUnlike(Check(shard),
               "--backup differs: s1 has 0, the coordinator has 1");
  shard.settings = options.server_settings;
  EXPECT_TRUE(Check(shard).ok());
  shard.settings = {{"--servers", "2"}};
  ExpectUnlike(Check(shard),
               "--backup differs: s1 has none, the coordinator has 1");
}

// Tests of the place where the optimizer runs.

TEST_F(JoinRulesTest, FirstWorkerThatNamesAPlaceOfTheOptimizerDecides) {
  second.caller.optimizer = OptimizerPlace::kWorker;
  EXPECT_TRUE(Check(second).ok());
  first.caller.optimizer = OptimizerPlace::kServer;
  ExpectUnlike(Check(second),
               "worker second has optimizer=worker, worker first server: the "
               "callers of all workers must run the optimizer, or none");
  first.caller.optimizer = OptimizerPlace::kWorker;
  EXPECT_TRUE(Check(second).ok());
  second.caller.optimizer = OptimizerPlace::kServer;
  ExpectUnlike(Check(second),
               "worker second has optimizer=server, worker first worker");
  second.caller.optimizer = std::nullopt;
  EXPECT_TRUE(Check(second).ok());
  // The claim of a shard does not count.
  first.caller.optimizer = std::nullopt;
  shard.caller.optimizer = OptimizerPlace::kServer;
  second.caller.optimizer = OptimizerPlace::kWorker;
  EXPECT_TRUE(Check(second).ok());
}

TEST_F(JoinRulesTest, RunningJobHasThePlaceThatItsFirstWorkersNamed) {
  JobOptions options;
  options.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr job = TestJob(1, 2, first.layers, options);
  second.caller.optimizer = OptimizerPlace::kServer;
  ExpectUnlike(Check(second, job.get()),
               "worker second has optimizer=server, the job worker");
  second.caller.optimizer = OptimizerPlace::kWorker;
  EXPECT_TRUE(Check(second, job.get()).ok());
}

TEST_F(JoinRulesTest, CallersOptimizerMustGoWithTheJobsOptions) {
  options.spec.options.rounds.quorum = Quorum::kSolo;
  EXPECT_TRUE(Check(second).ok());
  second.caller.optimizer = OptimizerPlace::kWorker;
  ExpectRefused(Check(second), absl::StatusCode::kInvalidArgument,
                "worker second has optimizer=worker: --optimizer=worker does "
                "not go with --quorum=solo");
}

TEST_F(JoinRulesTest, WorkerThatDoesNotScaleItsLossIsRefusedByAJobThatDoes) {
  options.spec.options.scale_loss = true;
  const absl::Status status = Check(second);
  ExpectUnlike(status,
               "the job has --loss-scale=dynamic, and worker second does not "
               "multiply its loss by the loss scale");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ClientOptions::scales_loss"),
                    HasSubstr("--loss-scale=off")));
  second.caller.scales_loss = true;
  EXPECT_TRUE(Check(second).ok());
  EXPECT_TRUE(Check(shard).ok());
}

TEST_F(JoinRulesTest, WorkerThatFollowsTheJobTakesItsOptimizerAnywhere) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    Newcomers all;
    all.options.spec.optimizer_by_worker = false;
    all.options.spec.options.optimizer_place = place;
    all.second.caller.optimizer = place;
    EXPECT_TRUE(all.Check(all.second).ok());
    all.second.caller.optimizer = std::nullopt;
    EXPECT_TRUE(all.Check(all.second).ok());
    // A shard runs what the coordinator says.
    EXPECT_TRUE(all.Check(all.shard).ok());
  }
}

// The model.

TEST_F(JoinRulesTest, RunningJobsModelCountsAndNotTheWorkers) {
  const JobPtr job = TestJob(1, 2, {VectorLayer("other", 3)});
  ExpectUnlike(Check(second, job.get()),
               "layer 0 of the job is other vector 1x3");
  second.layers = job->layers;
  EXPECT_TRUE(Check(second, job.get()).ok());
}

// A sparse job has one more layer, which says which blocks travel.
TEST_F(JoinRulesTest, SparseJobsModelIsTheWorkersModel) {
  JobOptions options;
  options.sparsity.share = 0.5;
  options.sparsity.block_elements = kBlockElementsMin;
  second.layers = {VectorLayer("large", 4096)};
  const JobPtr job = TestJob(1, 2, second.layers, options);
  ASSERT_EQ(job->layers.size(), 2u);
  EXPECT_TRUE(Check(second, job.get()).ok()) << Check(second, job.get());
}

// Products.

// Optimizer state.

TEST_F(JoinRulesTest, OptimizerStateOutOfRangeIsRefusedWithTheRange) {
  for (const int32_t arrays : {-1, kStateArraysMax + 1}) {
    Newcomers all;
    all.second.caller.state_arrays = arrays;
    ExpectRefused(all.Check(all.second), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("second keeps ", arrays,
                               " arrays of optimizer state, must be in [0, "));
  }
}

TEST_F(JoinRulesTest, OptimizerStateThatDiffersIsRefusedWhereWorkersUpdate) {
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  first.caller.state_arrays = 2;
  second.caller.state_arrays = 1;
  ExpectUnlike(
      Check(second),
      "worker second keeps 1 arrays of optimizer state, worker first has 2");
  JobOptions running;
  running.optimizer_place = OptimizerPlace::kWorker;
  const JobPtr job = EpochAfter(*TestJob(1, 2, first.layers, running),
                                [](Job& next) { next.state_arrays = 3; });
  ExpectUnlike(
      Check(second, job.get()),
      "worker second keeps 1 arrays of optimizer state, the job has 3");
  // The servers' state is not the workers'.
  options.spec.options.optimizer_place = OptimizerPlace::kServer;
  EXPECT_TRUE(Check(second).ok());
}

// A checkpoint.

class RestoredJoinTest : public JoinRulesTest {
 protected:
  RestoredJoinTest() {
    options.start_checkpoint =
        CheckpointRecord{/*round=*/12, /*contributions=*/26, {}};
    options.restored_layers = first.layers;
  }
};

TEST_F(RestoredJoinTest,
       ModelThatDiffersFromTheCheckpointIsRefusedWithItsRound) {
  second.layers[0] = VectorLayer("scale", 9);
  ExpectUnlike(CheckFirst(second),
               "layer 0 of the checkpoint of round 12 is scale vector 1x8");
}

TEST_F(RestoredJoinTest, CheckpointAllowsOtherBatchesAndNoFactors) {
  second.layers[1].rows = 77;
  second.layers[1].has_factors = false;
  EXPECT_TRUE(CheckFirst(second).ok()) << CheckFirst(second);
}

TEST_F(RestoredJoinTest, CheckpointWithOtherOptimizerStateIsRefusedWithBoth) {
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  options.restored_state_arrays = 2;
  second.caller.state_arrays = 1;
  ExpectUnlike(
      CheckFirst(second),
      "worker second keeps 1 arrays of optimizer state, the checkpoint of "
      "round 12 has 2");
}

TEST_F(RestoredJoinTest, RunningJobIsNotComparedWithItsCheckpointAgain) {
  const JobPtr job = TestJob(1, 2, second.layers);
  options.restored_layers = {VectorLayer("other", 3)};
  EXPECT_TRUE(Check(second, job.get()).ok());
}

// The folder.

TEST_F(JoinRulesTest, ShardWithoutTheJobsFolderIsRefused) {
  options.has_checkpoints = true;
  ExpectUnlike(Check(shard),
               "s1, shard 1, has no --checkpoint-dir, and the coordinator has "
               "one: all servers must share one folder");
  shard.has_checkpoints = true;
  EXPECT_TRUE(Check(shard).ok());
}

TEST_F(JoinRulesTest, ShardWithAFolderIsRefusedByAJobWithoutOne) {
  shard.has_checkpoints = true;
  ExpectUnlike(Check(shard),
               "s1, shard 1, has a --checkpoint-dir, and the coordinator has "
               "none: all servers must share one folder");
}

// ---- Rows that a job learns from its workers.

// The model of the first worker with other rows of layer fc.
JobPtr JobWithRows(int64_t rows) {
  std::vector<LayerSpec> layers = WorkerRequest("first").layers;
  layers[1].rows = rows;
  return TestJob(1, 2, layers);
}

TEST_F(JoinRulesTest, WorkerNeedNotKnowWhatTheJobHasLearnt) {
  second.layers[1].rows = kRowsNotKnown;
  for (const int64_t rows : {int64_t{2}, kRowsNotKnown, kFactorsLost}) {
    EXPECT_TRUE(Check(second, JobWithRows(rows).get()).ok()) << rows;
  }
  // Also not if it knows its rows, and the job has lost the factors.
  second.layers[1].rows = 3;
  EXPECT_TRUE(Check(second, JobWithRows(kFactorsLost).get()).ok());
  ExpectUnlike(Check(second, JobWithRows(2).get()),
               "layer 1 of the job is fc fc 64x64, 4160 parameters, 2 rows");
  ExpectUnlike(Check(second, JobWithRows(kRowsNotKnown).get()),
               "with factors, rows not known yet; ours is fc fc 64x64, 4160 "
               "parameters, 3 rows");
}

TEST_F(JoinRulesTest, FirstWorkersKnowTheirRowsAlikeOrNone) {
  second.layers[1].rows = kRowsNotKnown;
  ExpectUnlike(Check(second), "rows not known yet");
  first.layers[1].rows = kRowsNotKnown;
  EXPECT_TRUE(Check(second).ok());
}

TEST_F(JoinRulesTest, WorkerMustNotJoinWithLostFactors) {
  first.layers[1].rows = kFactorsLost;
  ExpectRefused(CheckFirst(first), absl::StatusCode::kInvalidArgument,
                "layer fc of first has lost its factors");
}

}  // namespace
}  // namespace nereus
