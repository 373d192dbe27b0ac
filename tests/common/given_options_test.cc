#include "common/flags/given_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace nereus {
namespace {

// Returns the first line of a program with these arguments.
std::string StartOf(std::vector<std::string> arguments) {
  CLI::App app("Tests the first line.", "tester");
  int steps = 10;
  bool once = false;
  LogFlags log;
  JobFlags job;
  AddFlag(app, "steps", steps, "a number");
  AddSwitch(app, "once", once, "a switch");
  AddCommonFlags(app, "tester", log);
  AddJobFlags(app, job);
  arguments.insert(arguments.begin(), "tester");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  EXPECT_EQ(ParseFlags(app, argc, argv.data()), -1);
  return DescribeStart(app, argc, argv.data(), &job);
}

const std::string kName = absl::StrCat("tester ", kVersion);

TEST(GivenOptionsTest, OptionsWithTheirDefaultsAreNotShown) {
  EXPECT_EQ(StartOf({}), kName);
  EXPECT_EQ(StartOf({"--steps=10", "--log-format=text", "--update=sgd"}),
            kName);
}

TEST(GivenOptionsTest, OtherOptionsAreShownByOrigin) {
  setenv("NEREUS_LOG_FORMAT", "json", /*overwrite=*/1);
  setenv("NEREUS_STEPS", "30", /*overwrite=*/1);
  const std::string line = StartOf({"--steps", "20", "--once"});
  unsetenv("NEREUS_LOG_FORMAT");
  unsetenv("NEREUS_STEPS");
  EXPECT_EQ(line, absl::StrCat(kName,
                               "; command line: --steps=20 --once=true"
                               "; variables: NEREUS_LOG_FORMAT=json"));
}

TEST(GivenOptionsTest, OptionsOfTheJobFileAreShownUnlessAFlagReplacesThem) {
  const std::string path = testing::TempDir() + "/given_options.conf";
  std::ofstream(path) << "workers = 3\nquorum = solo\nstaleness = 2\n"
                         "update = sgd\n";
  EXPECT_EQ(StartOf({absl::StrCat("--job=", path), "--staleness=4"}),
            absl::StrCat(kName, "; command line: --job=", path,
                         " --staleness=4; job file ", path,
                         ": workers=3 quorum=solo"));
}

}  // namespace
}  // namespace nereus
