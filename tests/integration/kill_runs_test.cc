// Runs kill_runs.py with mixed faults, and with backups and several workers on
// a host. The script kills or stops a worker, a server and the coordinator of a
// job that trains on MNIST, and a whole host if there are hosts. Without
// NEREUS_MNIST_DIR the test is skipped and says so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/testing/program_run.h"

namespace nereus {
namespace {

// A way to call the script.
struct Kind {
  const char* name;
  std::vector<std::string> flags;
  std::vector<const char*> struck = {"worker", "server", "coordinator"};
};

class KillRunsTest : public testing::TestWithParam<Kind> {};

TEST_P(KillRunsTest, JobEndsAsWithoutFaults) {
  const char* directory = std::getenv("NEREUS_MNIST_DIR");
  if (directory == nullptr) {
    GTEST_SKIP() << "NEREUS_MNIST_DIR is not set: no data to train on";
  }
  // Jobs without faults reach 0.985 to 0.99.
  std::vector<std::string> command = {"tests/integration/kill_runs.py",
                                      "--runs=1", "--expect=0.985",
                                      std::string("--data=") + directory};
  command.insert(command.end(), GetParam().flags.begin(),
                 GetParam().flags.end());
  ProgramRun run(command);
  EXPECT_EQ(run.Finish(absl::Minutes(30)), 0) << run.output() << run.error();
  EXPECT_THAT(run.output(), testing::HasSubstr("1 of 1 runs were good"));
  for (const char* kind : GetParam().struck) {
    EXPECT_THAT(run.output(),
                testing::ContainsRegex(std::string("struck .*") + kind +
                                       " (killed|stopped)"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, KillRunsTest,
    testing::Values(Kind{"Mixed", {"--mixed"}},
                    Kind{"Hosts",
                         {"--hosts=2", "--backup=1", "--epochs=6"},
                         {"worker", "host", "server", "coordinator"}}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace nereus
