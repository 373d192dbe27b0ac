// Runs kill_runs.py without backups, with backups, and with mixed faults. The
// script kills or stops a worker, a server and the coordinator of a job that
// trains on MNIST. Without NEREUS_MNIST_DIR the test is skipped and says so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/testing/program_run.h"

namespace nereus {
namespace {

class KillRunsTest : public testing::TestWithParam<const char*> {};

TEST_P(KillRunsTest, JobEndsAsWithoutFaults) {
  const char* directory = std::getenv("NEREUS_MNIST_DIR");
  if (directory == nullptr) {
    GTEST_SKIP() << "NEREUS_MNIST_DIR is not set: no data to train on";
  }
  ProgramRun run({"tests/integration/kill_runs.py", "--runs=1",
                  std::string("--data=") + directory, GetParam()});
  EXPECT_EQ(run.Finish(absl::Minutes(30)), 0) << run.output() << run.error();
  EXPECT_THAT(run.output(), testing::HasSubstr("1 of 1 runs were good"));
  for (const char* kind : {"worker", "server", "coordinator"}) {
    EXPECT_THAT(run.output(),
                testing::ContainsRegex(std::string("struck .*") + kind +
                                       " (killed|stopped)"));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, KillRunsTest,
                         testing::Values("--backup=0", "--backup=1", "--mixed"),
                         [](const auto& kind) {
                           const std::string flag = kind.param;
                           return flag == "--mixed"
                                      ? "Mixed"
                                      : std::string("Backup") + flag.back();
                         });

}  // namespace
}  // namespace nereus
