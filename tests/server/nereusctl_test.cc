// Tests of the program nereusctl itself, with what main adds to the commands.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace nereus {
namespace {

using testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string output;  // Standard output and standard error.
};

// Runs `nereusctl arguments` in a shell. `environment`: assignments before the
// command, such as "A=1 B=2".
Result RunNereusctl(const std::string& arguments,
                    const std::string& environment = "") {
  const std::string command =
      environment + " server/admin/nereusctl " + arguments + " 2>&1";
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  size_t bytes = 0;
  while ((bytes = fread(buffer, 1, sizeof(buffer), pipe)) > 0) {
    result.output.append(buffer, bytes);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

TEST(NereusctlTest, PrintsItsVersion) {
  const Result result = RunNereusctl("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, absl::StrCat("nereusctl ", kVersion, "\n"));
}

TEST(NereusctlTest, HelpNamesAtLeastThePlanCommand) {
  const Result result = RunNereusctl("--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("plan"));
}

TEST(NereusctlTest, LocalTrainsWithTheReferenceOptimizerByDefault) {
  const Result result = RunNereusctl("local --help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("--learning-rate FLOAT=0.02 "));
  EXPECT_THAT(result.output, HasSubstr("--weight-decay FLOAT=0.0005 "));
}

TEST(NereusctlTest, UsageErrorsExitWithTwo) {
  for (const char* arguments :
       {"", "fly", "plan", "plan --model=vgg19 --workers=-1",
        "plan --model=vgg19 --workers=2 --fast",
        "plan --model=x --workers=2"}) {
    const Result result = RunNereusctl(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output;
    EXPECT_NE(result.output, "") << arguments;
  }
}

TEST(NereusctlTest, FailuresExitWithOne) {
  const Result result = RunNereusctl("checkpoints /no/such/folder");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("/no/such/folder"));
}

TEST(NereusctlTest, WrongFilesExitWithTwo) {
  const Result result = RunNereusctl("plan --model=/no/such/file --workers=2");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("cannot open /no/such/file"));
}

TEST(NereusctlTest, RunsThePlanCommand) {
  const Result result = RunNereusctl("plan --model=vgg19 --workers=3");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("\nvgg19: 3 workers, 3 servers"));
}

TEST(NereusctlTest, FlagsComeFromTheEnvironmentAndTheCommandLineWins) {
  const Result result =
      RunNereusctl("plan --model=vgg19 --workers=3",
                   "NEREUS_WORKERS=7 NEREUS_SERVERS=5 NEREUS_SCHEME=server");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      result.output,
      HasSubstr("\nvgg19: 3 workers, 5 servers, batch 32, scheme server"));
}

}  // namespace
}  // namespace nereus
