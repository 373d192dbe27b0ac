#include "server/admin/local_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace nereus {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct BadCase {
  const char* name;
  void (*change)(LocalOptions&);
  const char* message;
};

class BadLocalOptionsTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadLocalOptionsTest, RefusalNamesTheFlag) {
  LocalOptions options;
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  GetParam().change(options);
  const absl::Status status = options.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

constexpr BadCase kBadCases[] = {
    {"NoWorkers", [](LocalOptions& o) { o.spec.workers = 0; },
     "--workers is 0"},
    {"TooManyWorkers", [](LocalOptions& o) { o.spec.workers = 65; },
     "--workers is 65"},
    {"NoServers", [](LocalOptions& o) { o.spec.shards = 0; }, "--servers is 0"},
    {"TooManyServers", [](LocalOptions& o) { o.spec.shards = 65; },
     "--servers is 65"},
    {"MoreHostsThanWorkers", [](LocalOptions& o) { o.hosts = 5; },
     "--hosts is 5, must be from 1 to 4, the value of --workers"},
    {"NegativeHosts", [](LocalOptions& o) { o.hosts = -1; },
     "--hosts is -1, must be from 1 to 4"},
    {"CheckpointsWithoutAFolder",
     [](LocalOptions& o) { o.spec.options.checkpoint_every = 5; },
     "--checkpoint-every is 5, and --checkpoint-dir is not given"},
    {"RestoreWithoutAFolder", [](LocalOptions& o) { o.restore = "latest"; },
     "--restore is latest, and --checkpoint-dir is not given"},
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

// Parses a command line. Returns the message of its mistake, or "".
std::string Parse(const std::string& argument, LocalOptions& options) {
  CLI::App app;
  JobFlags job;
  AddLocalFlags(app, options, job);
  testing::internal::CaptureStderr();
  std::string program = "local";
  std::string copy = argument;
  char* argv[] = {program.data(), copy.data(), nullptr};
  EXPECT_EQ(ParseFlags(app, 2, argv), argument == "--batch=3" ? -1 : 2);
  return testing::internal::GetCapturedStderr();
}

TEST(LocalFlagsTest, TrainingFlagOutOfRangeIsRefusedWithItsRange) {
  const struct {
    const char* argument;
    const char* message;
  } kCases[] = {
      {"--batch=0", "--batch is \"0\", must be a number from 1 to 65536"},
      {"--batch=1.5", "--batch is \"1.5\", must be a number from 1"},
      {"--epochs=0", "--epochs is \"0\", must be a number from 1 to 1000000"},
      {"--seed=-1", "--seed is \"-1\", must be a number from 0"},
      {"--limit=-1", "--limit is \"-1\", must be a number from 0"},
      {"--threads=0", "--threads is \"0\", must be a number from 1 to 1024"},
      {"--holdout=-0.5", "--holdout is \"-0.5\", must be a number from 0.001"},
      {"--holdout=1", "--holdout is \"1\", must be a number from 0.001 to"},
      {"--delay-in-turn=-1", "--delay-in-turn is \"-1\", must be a number"},
      {"--hosts=0", "--hosts is \"0\", must be a number from 1 to 64"},
      {"--restarts=-1", "--restarts is \"-1\", must be a number from 0"},
  };
  for (const auto& c : kCases) {
    LocalOptions options;
    EXPECT_THAT(Parse(c.argument, options), HasSubstr(c.message));
  }
  LocalOptions options;
  EXPECT_EQ(Parse("--batch=3", options), "");
  EXPECT_EQ(options.batch(), 3);
}

const LocalFiles kFiles = {"job.conf", "state.sqlite", "last-status.json"};

TEST(LocalOptionsTest, FirstShardCoordinatesAndOtherShardsGetItsAddress) {
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

TEST(LocalOptionsTest, SeparateCoordinatorKeepsItsJobInAStateFile) {
  EXPECT_THAT(
      CoordinatorArguments(LocalOptions(), kFiles, "7"),
      AllOf(Contains("--coordinate-only"), Contains("--control-port=7"),
            Contains("--job=job.conf"), Contains("--state=state.sqlite")));
}

TEST(LocalOptionsTest, WorkersGetTheTrainingFlagsAndTheCoordinatorsAddress) {
  LocalOptions options;
  options.training["model"] = "mlp";
  options.training["data"] = "/data/digits";
  options.training["limit"] = "400";
  options.log = {LogLevel::kDebug, LogFormat::kJson};
  EXPECT_THAT(
      WorkerArguments(options, 3, "127.0.0.1:7"),
      AllOf(Contains("--coordinator=127.0.0.1:7"), Contains("--model=mlp"),
            Contains("--data=/data/digits"), Contains("--limit=400"),
            Contains("--batch=32"), Contains("--epochs=8"),
            Contains("--seed=1"), Contains("--threads=1"),
            Contains("--device=cpu"), Contains("--holdout=0.2"),
            Contains("--json"), Contains("--log-level=debug"),
            Contains("--log-format=json")));
}

// Returns the --node of each server, then that of each worker.
std::vector<std::string> NodesOf(const LocalOptions& options) {
  std::vector<std::string> nodes;
  const auto add = [&](const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments) {
      if (argument.starts_with("--node=")) nodes.push_back(argument.substr(7));
    }
  };
  for (int shard = 0; shard < options.spec.shards; ++shard) {
    add(ServerArguments(options, kFiles, shard, "h:1"));
  }
  for (int worker = 0; worker < options.spec.workers; ++worker) {
    add(WorkerArguments(options, worker, "h:1"));
  }
  return nodes;
}

TEST(LocalOptionsTest, EachWorkerPlaysAHostOfItsOwnByDefault) {
  LocalOptions options;
  options.spec.workers = 2;
  options.spec.shards = 3;
  EXPECT_THAT(NodesOf(options),
              ElementsAre("host-0", "host-1", "host-2", "host-0", "host-1"));
}

TEST(LocalOptionsTest, WorkersAreSpreadOverTheHostsInOrder) {
  LocalOptions options;
  options.spec.workers = 5;
  options.spec.shards = 2;
  options.hosts = 2;
  ASSERT_TRUE(options.Validate().ok()) << options.Validate();
  EXPECT_THAT(NodesOf(options),
              ElementsAre("host-0", "host-1", "host-0", "host-0", "host-0",
                          "host-1", "host-1"));
  options.hosts = 1;
  options.spec.workers = 2;
  EXPECT_THAT(NodesOf(options),
              ElementsAre("host-0", "host-0", "host-0", "host-0"));
}

TEST(LocalOptionsTest, NumbersOfTheCommandLineReachWorkersInDecimal) {
  CLI::App app;
  LocalOptions options;
  JobFlags job;
  AddLocalFlags(app, options, job);
  app.parse("--batch=0x20 --epochs=3");
  EXPECT_EQ(options.batch(), 32);
  EXPECT_THAT(WorkerArguments(options, 0, "h:1"),
              AllOf(Contains("--batch=32"), Contains("--epochs=3")));
}

TEST(LocalOptionsTest, EmptyValueIsPassedOnUnlessItIsTheDefault) {
  LocalOptions options;
  EXPECT_THAT(WorkerArguments(options, 0, "h:1"),
              Not(Contains(StartsWith("--data="))));
  options.training["model"] = "";
  EXPECT_THAT(WorkerArguments(options, 0, "h:1"), Contains("--model="));
}

TEST(LocalOptionsTest, WorkersDoNotGetTheFlagsOfTheUpdateRule) {
  LocalOptions options;
  options.spec.options.optimizer_place = OptimizerPlace::kWorker;
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"),
              Not(Contains(StartsWith("--learning-rate="))));
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"), Contains("--name=3"));
  EXPECT_THAT(WorkerArguments(options, 3, "h:1"), Contains("--rank=3"));
}

}  // namespace
}  // namespace nereus
