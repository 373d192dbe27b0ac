#include "server/admin/run_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/admin/local_options.h"

namespace nereus {
namespace {

using Arguments = std::vector<std::string>;

struct Case {
  const char* name;
  Arguments typed;    // Behind "nereusctl run".
  Arguments flags;    // The flags that are left to the parser.
  Arguments program;  // The program and its arguments.
};

class TakeProgramTest : public testing::TestWithParam<Case> {};

TEST_P(TakeProgramTest, SplitsTheCommandLine) {
  CLI::App app;
  LocalJobOptions options;
  JobFlags job;
  AddLocalJobFlags(app, options, job);
  Arguments arguments = {"nereusctl", "run"};
  arguments.insert(arguments.end(), GetParam().typed.begin(),
                   GetParam().typed.end());
  EXPECT_EQ(TakeProgram(app, arguments), GetParam().program);
  Arguments left = {"nereusctl", "run"};
  left.insert(left.end(), GetParam().flags.begin(), GetParam().flags.end());
  EXPECT_EQ(arguments, left);
}

const Case kCases[] = {
    {"EverythingBehindTheDashes",
     {"--workers=2", "--", "train", "--epochs=3", "--", "x"},
     {"--workers=2"},
     {"train", "--epochs=3", "--", "x"}},
    {"NoDashes",
     {"-np", "2", "train", "-np", "3"},
     {"--workers", "2"},
     {"train", "-np", "3"}},
    {"ShortForms",
     {"-np=2", "-n", "3", "-n=4", "--", "a"},
     {"--workers=2", "--workers", "3", "--workers=4"},
     {"a"}},
    {"ValueOfAFlagIsNoProgram",
     {"--restarts", "2", "--learning-rate", "0.1", "train"},
     {"--restarts", "2", "--learning-rate", "0.1"},
     {"train"}},
    {"SwitchTakesNoValue",
     {"--deterministic", "train", "1"},
     {"--deterministic"},
     {"train", "1"}},
    {"UnknownFlagStaysForTheParser",
     {"--workres=2", "train"},
     {"--workres=2"},
     {"train"}},
    {"OtherShortFlagStays", {"-q", "--", "a"}, {"-q"}, {"a"}},
    {"NoProgram", {"--workers=2"}, {"--workers=2"}, {}},
    {"DashesAlone", {"--workers=2", "--"}, {"--workers=2"}, {}},
    {"DashesAreNoValue", {"--restore", "--", "a"}, {"--restore"}, {"a"}},
    {"MissingValue", {"--workers"}, {"--workers"}, {}},
    {"Nothing", {}, {}, {}},
};

INSTANTIATE_TEST_SUITE_P(Table, TakeProgramTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nereus
