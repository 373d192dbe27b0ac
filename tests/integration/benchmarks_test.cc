// Runs the benchmarks of synchronisation, transport and recovery with small
// numbers. Checks that they run and report all their cases; does not judge
// times.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BenchmarksTest, SyncBenchmarkReportsItsRounds) {
  ProgramRun run({"tests/benchmarks/sync_benchmark.py", "--bytes=1000000",
                  "--processes=2", "--repeats=3",
                  "--systems=nereus-ring,nereus-server,nereus-factor",
                  "--json"});
  ASSERT_EQ(run.Finish(), 0) << run.error();
  std::vector<std::string> algorithms;
  for (const auto line :
       absl::StrSplit(run.output(), '\n', absl::SkipEmpty())) {
    const auto report = nlohmann::json::parse(line, /*cb=*/nullptr,
                                              /*allow_exceptions=*/false);
    ASSERT_TRUE(report.is_object()) << line;
    algorithms.push_back(report.at("algorithm"));
    EXPECT_EQ(report.at("system"), "nereus");
    EXPECT_EQ(report.at("processes"), 2);
    EXPECT_EQ(report.at("bytes"), 1000000);
    EXPECT_EQ(report.at("rounds"), 3);
    EXPECT_GT(report.at("seconds_min"), 0.0);
    EXPECT_GE(report.at("seconds_median"), report.at("seconds_min"));
    EXPECT_GE(report.at("seconds_max"), report.at("seconds_median"));
    EXPECT_GT(report.at("cpu_seconds_per_gb"), 0.0);
    EXPECT_GT(report.at("peak_bytes"), 1000000);
  }
  EXPECT_THAT(algorithms, ElementsAre("ring", "server", "factor"));
}

TEST(BenchmarksTest, TransportBenchmarkReportsBothDirections) {
  ProgramRun run(
      {"tests/benchmarks/transport_benchmark", "--frames=4", "--rounds=3"});
  ASSERT_EQ(run.Finish(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("one way"));
  EXPECT_THAT(run.output(), HasSubstr("both ways"));
  EXPECT_THAT(run.output(), HasSubstr("3 rounds of 1 MB"));
}

TEST(BenchmarksTest, RecoveryBenchmarkTimesEachCase) {
  // The lease is so long that no live process counts as dead on a busy machine.
  ProgramRun run({"tests/benchmarks/recovery_benchmark.py", "--workers=3",
                  "--parameters=20000", "--repeats=1", "--lease=5",
                  "--stop-seconds=7", "--json"});
  ASSERT_EQ(run.Finish(), 0) << run.error() << run.output();
  std::vector<std::string> cases;
  for (const auto line :
       absl::StrSplit(run.output(), '\n', absl::SkipEmpty())) {
    const auto report = nlohmann::json::parse(line, /*cb=*/nullptr,
                                              /*allow_exceptions=*/false);
    ASSERT_TRUE(report.is_object()) << line;
    cases.push_back(report.at("case"));
    const bool has_gap = absl::StartsWith(cases.back(), "coordinator");
    EXPECT_GT(report.at(has_gap ? "gap" : "resumed").at("median"), 0.0) << line;
  }
  EXPECT_THAT(cases, ElementsAre("worker", "server", "coordinator", "stopped",
                                 "coordinator-stopped"));
}

TEST(BenchmarksTest, RecoveryBenchmarkReportsMemoryOfProcesses) {
  ProgramRun run({"tests/benchmarks/recovery_benchmark.py", "--memory",
                  "--workers=2", "--parameters=20000", "--rounds=200",
                  "--warmup-rounds=50", "--sample-rounds=50", "--visits=2",
                  "--json"});
  ASSERT_EQ(run.Finish(), 0) << run.error() << run.output();
  const auto report = nlohmann::json::parse(run.output(), /*cb=*/nullptr,
                                            /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << run.output();
  EXPECT_EQ(report.at("visits"), 2);
  EXPECT_EQ(report.at("processes").size(), 3);
  EXPECT_GT(report.at("processes").at("server0").at("first_kib"), 0);
}

}  // namespace
}  // namespace nereus
