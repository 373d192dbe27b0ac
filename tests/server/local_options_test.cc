#include "server/admin/local_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct BadCase {
  const char* name;
  void (*change)(LocalOptions&);
  const char* message;
};

class BadLocalOptionsTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadLocalOptionsTest, AreRefusedByTheFieldsName) {
  LocalOptions options;
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  GetParam().change(options);
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

constexpr BadCase kBadCases[] = {
    {"NoWorkers", [](LocalOptions& o) { o.spec.workers = 0; }, "workers is 0"},
    {"TooManyWorkers", [](LocalOptions& o) { o.spec.workers = 65; },
     "workers is 65"},
    {"NoServers", [](LocalOptions& o) { o.spec.shards = 0; }, "servers is 0"},
    {"TooManyServers", [](LocalOptions& o) { o.spec.shards = 65; },
     "servers is 65"},
    {"NoBatch", [](LocalOptions& o) { o.training.batch = 0; }, "batch is 0"},
    {"NoEpochs", [](LocalOptions& o) { o.training.epochs = 0; }, "epochs is 0"},
    {"NegativeSeed", [](LocalOptions& o) { o.training.seed = -1; },
     "seed is -1"},
    {"NegativeLimit", [](LocalOptions& o) { o.training.limit = -1; },
     "limit is -1"},
    {"NoThreads", [](LocalOptions& o) { o.training.threads = 0; },
     "threads is 0"},
    {"NegativeHoldout", [](LocalOptions& o) { o.training.holdout = -0.5; },
     "holdout is -0.5"},
    {"NothingToTrainOn", [](LocalOptions& o) { o.training.holdout = 1; },
     "holdout is 1"},
    {"BackupWithoutAnotherServer",
     [](LocalOptions& o) {
       o.spec.options.backup = true;
       o.spec.shards = 1;
     },
     "--backup=1 needs two servers or more: --servers is 1"},
    {"NegativeLearningRate",
     [](LocalOptions& o) { o.spec.options.optimizer.learning_rate = -1; },
     "--learning-rate"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadLocalOptionsTest,
                         testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

const LocalFiles kFiles = {"job.conf", "state.sqlite"};

TEST(LocalOptionsTest, FirstShardHostsTheCoordinatorAndTheOthersFindIt) {
  LocalOptions options;
  options.restore = "latest";
  EXPECT_THAT(ServerArguments(options, kFiles, 0, ""),
              AllOf(Contains("--shard=0"), Contains("--job=job.conf"),
                    Contains("--restore=latest"), Contains("--control-port=0"),
                    Contains("--data-port=0"), Contains("--log-level=info"),
                    Not(Contains(StartsWith("--coordinator")))));
  EXPECT_THAT(
      ServerArguments(options, kFiles, 1, "127.0.0.1:7"),
      AllOf(Contains("--shard=1"), Contains("--coordinator=127.0.0.1:7"),
            Contains("--job-name=default"), Not(Contains(StartsWith("--job="))),
            Not(Contains(StartsWith("--restore")))));
}

TEST(LocalOptionsTest, ACoordinatorThatMayDieKeepsItsJobInAFile) {
  EXPECT_THAT(
      CoordinatorArguments(LocalOptions(), kFiles, 7),
      AllOf(Contains("--coordinate-only"), Contains("--control-port=7"),
            Contains("--job=job.conf"), Contains("--state=state.sqlite")));
}

TEST(LocalOptionsTest, WorkersGetTheirDataAndTheCoordinator) {
  LocalOptions options;
  options.training.model = "mlp";
  options.training.data = "/data/digits";
  options.training.limit = 400;
  options.log_level = LogLevel::kDebug;
  EXPECT_THAT(
      WorkerArguments(options, 3, "127.0.0.1:7"),
      AllOf(Contains("--coordinator=127.0.0.1:7"), Contains("--model=mlp"),
            Contains("--data=/data/digits"), Contains("--limit=400"),
            Contains("--batch=32"), Contains("--epochs=8"),
            Contains("--seed=1"), Contains("--threads=1"),
            Contains("--device=cpu"), Contains("--holdout=0.2"),
            Contains("--json"), Contains("--log-level=debug")));
}

TEST(LocalOptionsTest, WorkersTakeTheUpdateRuleFromTheJob) {
  LocalOptions options;
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"),
              Not(Contains(StartsWith("--learning-rate="))));
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"), Contains("--name=3"));
}

}  // namespace
}  // namespace nereus
