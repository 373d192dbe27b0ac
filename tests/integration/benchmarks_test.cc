// Every benchmark once, in small: that it still runs and checks its result. No
// time is measured here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

TEST(BenchmarksTest, SyncBenchmarkReportsItsRounds) {
  ProgramRun run({"tests/benchmarks/sync_benchmark", "--bytes=1000000",
                  "--workers=2", "--servers=2", "--repeats=3", "--warmup=1",
                  "--json"});
  ASSERT_EQ(run.Finish(), 0) << run.error();
  const auto report = nlohmann::json::parse(run.output(), /*cb=*/nullptr,
                                            /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object()) << run.output();
  EXPECT_EQ(report.at("processes"), 2);
  EXPECT_EQ(report.at("servers"), 2);
  EXPECT_EQ(report.at("bytes"), 1000000);
  EXPECT_GT(report.at("seconds_min"), 0.0);
  EXPECT_GE(report.at("seconds_median"), report.at("seconds_min"));
  EXPECT_GE(report.at("seconds_max"), report.at("seconds_median"));
}

TEST(BenchmarksTest, TransportBenchmarkReportsBothDirections) {
  ProgramRun run(
      {"tests/benchmarks/transport_benchmark", "--frames=4", "--rounds=3"});
  ASSERT_EQ(run.Finish(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("one way"));
  EXPECT_THAT(run.output(), HasSubstr("both ways"));
  EXPECT_THAT(run.output(), HasSubstr("3 rounds of 1 MB"));
}

}  // namespace
}  // namespace nereus
