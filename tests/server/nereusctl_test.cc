// Tests of the program nereusctl itself, with what main adds to the commands.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

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

struct Case {
  const char* name;
  const char* arguments;
  int exit_code;
  std::vector<std::string> output;  // Parts of the output.
  const char* environment = "";
};

class NereusctlTest : public testing::TestWithParam<Case> {};

TEST_P(NereusctlTest, AnswersWithItsExitCode) {
  const Result result =
      RunNereusctl(GetParam().arguments, GetParam().environment);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.output;
  EXPECT_NE(result.output, "");
  for (const std::string& part : GetParam().output) {
    EXPECT_THAT(result.output, HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, NereusctlTest,
    testing::Values(
        Case{"Version",
             "--version",
             0,
             {absl::StrCat("nereusctl ", kVersion, "\n")}},
        Case{"Help", "--help", 0, {"plan"}},
        Case{"LocalTrainsWithTheReferenceOptimizerByDefault",
             "local --help",
             0,
             {"--learning-rate FLOAT=0.02 ", "--weight-decay FLOAT=0.0005 "}},
        Case{"NoCommand", "", 2, {}}, Case{"UnknownCommand", "fly", 2, {}},
        Case{"NoFlags", "plan", 2, {}},
        Case{"ValueOutOfRange", "plan --model=vgg19 --workers=-1", 2, {}},
        Case{"UnknownFlag", "plan --model=vgg19 --workers=2 --fast", 2, {}},
        Case{"UnknownModel", "plan --model=x --workers=2", 2, {}},
        Case{"Failure", "checkpoints /no/such/folder", 1, {"/no/such/folder"}},
        Case{"WrongFile",
             "plan --model=/no/such/file --workers=2",
             2,
             {"cannot open /no/such/file"}},
        Case{"Plan",
             "plan --model=vgg19 --workers=3",
             0,
             {"\nvgg19: 3 workers, 3 servers"}},
        Case{"CommandLineWinsOverTheEnvironment",
             "plan --model=vgg19 --workers=3",
             0,
             {"\nvgg19: 3 workers, 5 servers, batch 32, scheme server"},
             "NEREUS_WORKERS=7 NEREUS_SERVERS=5 NEREUS_SCHEME=server"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nereus
