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
    {"NoWorkers", [](LocalOptions& o) { o.workers = 0; }, "workers is 0"},
    {"TooManyWorkers", [](LocalOptions& o) { o.workers = 65; },
     "workers is 65"},
    {"NoServers", [](LocalOptions& o) { o.servers = 0; }, "servers is 0"},
    {"TooManyServers", [](LocalOptions& o) { o.servers = 65; },
     "servers is 65"},
    {"NoBatch", [](LocalOptions& o) { o.batch = 0; }, "batch is 0"},
    {"NoEpochs", [](LocalOptions& o) { o.epochs = 0; }, "epochs is 0"},
    {"NegativeSeed", [](LocalOptions& o) { o.seed = -1; }, "seed is -1"},
    {"NegativeLimit", [](LocalOptions& o) { o.limit = -1; }, "limit is -1"},
    {"NoThreads", [](LocalOptions& o) { o.threads = 0; }, "threads is 0"},
    {"NegativeHoldout", [](LocalOptions& o) { o.holdout = -0.5; },
     "holdout is -0.5"},
    {"NothingToTrainOn", [](LocalOptions& o) { o.holdout = 1; },
     "holdout is 1"},
    {"BackupWithoutAnotherServer",
     [](LocalOptions& o) {
       o.job.backup = true;
       o.servers = 1;
     },
     "backup is 1, servers 1: it needs 2 or more"},
    {"NegativeLearningRate",
     [](LocalOptions& o) { o.job.optimizer.learning_rate = -1; },
     "learning_rate"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadLocalOptionsTest,
                         testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

TEST(LocalOptionsTest, FirstShardHostsTheCoordinatorAndTheOthersFindIt) {
  LocalOptions options;
  options.workers = 3;
  options.servers = 2;
  options.rules.forced = Scheme::kFactor;
  options.job.deterministic = true;
  options.job.optimizer.learning_rate = 0.1f;
  EXPECT_THAT(ServerArguments(options, 0, ""),
              AllOf(Contains("--shard=0"), Contains("--servers=2"),
                    Contains("--workers=3"), Contains("--control-port=0"),
                    Contains("--data-port=0"), Contains("--scheme=factor"),
                    Contains("--optimizer=server"), Contains("--update=sgd"),
                    Contains("--deterministic"), Contains("--log-level=info"),
                    Contains("--learning-rate=0.1"),
                    Not(Contains(StartsWith("--coordinator")))));
  EXPECT_THAT(
      ServerArguments(options, 1, "127.0.0.1:7"),
      AllOf(Contains("--shard=1"), Contains("--coordinator=127.0.0.1:7")));
}

TEST(LocalOptionsTest, ServersKeepCopiesIfTheyAreTo) {
  LocalOptions options;
  options.servers = 2;
  EXPECT_THAT(ServerArguments(options, 0, ""),
              Not(Contains(StartsWith("--backup"))));
  options.job.backup = true;
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  EXPECT_THAT(ServerArguments(options, 0, ""), Contains("--backup=1"));
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"),
              Not(Contains(StartsWith("--backup"))));
}

TEST(LocalOptionsTest, WorkersGetTheirDataAndTheCoordinator) {
  LocalOptions options;
  options.model = "mlp";
  options.data = "/data/digits";
  options.limit = 400;
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
  options.job.optimizer_place = OptimizerPlace::kWorker;
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"),
              Not(Contains(StartsWith("--learning-rate="))));
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"), Contains("--name=3"));
}

}  // namespace
}  // namespace nereus
