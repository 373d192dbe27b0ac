#include "server/admin/program_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

TEST(ThreadsOfEachTest, CoresAreSharedAndEachProgramHasOne) {
  EXPECT_EQ(ThreadsOfEach(/*cores=*/8, /*workers=*/2), 4);
  EXPECT_EQ(ThreadsOfEach(/*cores=*/8, /*workers=*/3), 2);
  EXPECT_EQ(ThreadsOfEach(/*cores=*/2, /*workers=*/8), 1);
  EXPECT_GE(UsableCores(), 1);
}

class ProgramWorkersTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.spec.workers = 4;
    options_.hosts = 1;
  }

  std::vector<std::string> Environment(std::optional<int> threads = 1) {
    PrefixedLines lines(&out_, /*is_terminal=*/false);
    const ProgramWorkers workers(options_, {"/bin/train", "--fast"}, threads,
                                 own_variables_, &lines, &lines);
    const ProcessOptions process = workers.Program(2, "h:1");
    EXPECT_THAT(process.command, ElementsAre("/bin/train", "--fast"));
    return process.environment;
  }

  // Returns the values of a variable in the environment of worker 2.
  std::vector<std::string> Values(const std::string& name,
                                  std::optional<int> threads = 1) {
    std::vector<std::string> values;
    for (const std::string& entry : Environment(threads)) {
      if (absl::StartsWith(entry, name + "=")) {
        values.push_back(entry.substr(name.size() + 1));
      }
    }
    return values;
  }

  std::ostringstream out_;
  LocalJobOptions options_;
  std::vector<std::string> own_variables_;
};

TEST_F(ProgramWorkersTest, ProgramFindsItsJobInItsEnvironment) {
  options_.spec.name = "digits";
  EXPECT_THAT(Values("NEREUS_COORDINATOR"), ElementsAre("h:1"));
  EXPECT_THAT(Values("NEREUS_JOB_NAME"), ElementsAre("digits"));
  EXPECT_THAT(Values("NEREUS_NAME"), ElementsAre("2"));
  EXPECT_THAT(Values("NEREUS_RANK"), ElementsAre("2"));
  EXPECT_THAT(Values("NEREUS_NODE"), ElementsAre("host-0"));
  EXPECT_THAT(Values("NEREUS_SHARED_MEMORY"), ElementsAre("auto"));
  EXPECT_THAT(Values("NEREUS_LOCAL_RANK"), ElementsAre("2"));
  EXPECT_THAT(Values("NEREUS_LOCAL_SIZE"), ElementsAre("4"));
  options_.hosts = 2;
  options_.shared_memory = false;
  EXPECT_THAT(Values("NEREUS_NODE"), ElementsAre("host-1"));
  EXPECT_THAT(Values("NEREUS_SHARED_MEMORY"), ElementsAre("off"));
}

// Two programs cannot listen at one port. Other variables are the user's.
TEST_F(ProgramWorkersTest, VariablesOfTheUserReachTheProgramIfTheyCan) {
  setenv("NEREUS_NAME", "of the user", 1);
  setenv("NEREUS_CONTROL_PORT", "7000", 1);
  setenv("NEREUS_DATA_PORT", "7001", 1);
  setenv("NEREUS_HOST", "10.0.0.1", 1);
  setenv("NEREUS_BATCH", "64", 1);
  EXPECT_THAT(Values("NEREUS_NAME"), ElementsAre("2"));
  EXPECT_THAT(Values("NEREUS_CONTROL_PORT"), IsEmpty());
  EXPECT_THAT(Values("NEREUS_DATA_PORT"), IsEmpty());
  EXPECT_THAT(Values("NEREUS_HOST"), IsEmpty());
  EXPECT_THAT(Values("NEREUS_BATCH"), ElementsAre("64"));
  for (const char* name : {"NEREUS_NAME", "NEREUS_CONTROL_PORT",
                           "NEREUS_DATA_PORT", "NEREUS_HOST", "NEREUS_BATCH"}) {
    unsetenv(name);
  }
}

TEST_F(ProgramWorkersTest, VariablesOfFlagsOfRunDoNotReachTheProgram) {
  setenv("NEREUS_JSON", "summary.json", 1);
  own_variables_ = {"NEREUS_JSON", "NEREUS_SHARED_MEMORY", "NEREUS_RESTORE"};
  EXPECT_THAT(Values("NEREUS_JSON"), IsEmpty());
  EXPECT_THAT(Values("NEREUS_RESTORE"), IsEmpty());
  EXPECT_THAT(Values("NEREUS_SHARED_MEMORY"), ElementsAre("auto"));
  unsetenv("NEREUS_JSON");
}

TEST_F(ProgramWorkersTest, ThreadsAreSetOnlyIfTheUserHasNotChosenThem) {
  setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_THAT(Values("OMP_NUM_THREADS", std::nullopt), ElementsAre("7"));
  unsetenv("OMP_NUM_THREADS");
  EXPECT_THAT(Values("OMP_NUM_THREADS", 3), ElementsAre("3"));
}

TEST_F(ProgramWorkersTest, PythonWritesItsLinesAtOnceUnlessTheUserDecides) {
  unsetenv("PYTHONUNBUFFERED");
  EXPECT_THAT(Values("PYTHONUNBUFFERED"), ElementsAre("1"));
  setenv("PYTHONUNBUFFERED", "", 1);
  EXPECT_THAT(Values("PYTHONUNBUFFERED"), ElementsAre(""));
  unsetenv("PYTHONUNBUFFERED");
}

}  // namespace
}  // namespace nereus
