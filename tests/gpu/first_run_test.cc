// Runs tests/gpu/first_run.sh without a GPU: it says what it skipped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string ReadFile(const std::string& name) {
  std::ifstream file(name);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

TEST(FirstRunTest, RunWithoutAGpuSaysWhatItSkipped) {
  // Hides the GPU of a machine that has one.
  setenv("CUDA_VISIBLE_DEVICES", "-1", /*replace=*/1);
  const std::string folder = absl::StrCat(testing::TempDir(), "/first_run");
  ProgramRun run(
      {"tests/gpu/first_run.sh", absl::StrCat("--out=", folder), "--quick"});
  EXPECT_EQ(run.Finish(), 0) << run.error();
  const auto report =
      nlohmann::json::parse(ReadFile(folder + "/first_run.json"),
                            /*cb=*/nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(report.is_object());
  std::set<std::string> steps;
  for (const auto& row : report.at("rows")) {
    steps.insert(row.at("step"));
    EXPECT_EQ(row.at("result"), "skipped") << row;
    EXPECT_THAT(row.at("note").get<std::string>(), StartsWith("no GPU: "));
  }
  EXPECT_THAT(steps, ElementsAre("ceilings", "client", "experiments", "jobs",
                                 "kernels", "replay", "sanitizers"));
  EXPECT_EQ(report.at("skipped"), report.at("rows").size());
  const std::string table = ReadFile(folder + "/first_run.md");
  EXPECT_THAT(table,
              HasSubstr("| replay | vgg19 | - |  |  | skipped | no GPU"));
  EXPECT_THAT(run.output(), HasSubstr(table));
}

TEST(FirstRunTest, HelpSaysWhatTheScriptNeedsAndLeaves) {
  ProgramRun run({"tests/gpu/first_run.sh", "--help"});
  EXPECT_EQ(run.Finish(), 0) << run.error();
  EXPECT_THAT(run.output(), HasSubstr("cuBLAS 13"));
  EXPECT_THAT(run.output(), HasSubstr("first_run.json"));
}

TEST(FirstRunTest, UnknownFlagIsRefused) {
  ProgramRun run({"tests/gpu/first_run.sh", "--fast"});
  EXPECT_EQ(run.Finish(), 2);
  EXPECT_THAT(run.error(), HasSubstr("--fast"));
}

}  // namespace
}  // namespace nereus
