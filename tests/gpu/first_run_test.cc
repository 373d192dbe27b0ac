// Runs tests/gpu/first_run.sh without a GPU. The script says what it skipped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
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

// Copies the script to `folder`, and writes a program there that takes the
// place of kernel_emulation_test. The test A.Hangs of this program hangs.
void WriteHangingTest(const std::filesystem::path& folder) {
  for (const char* name : {"first_run.sh", "first_run.py", "first_run_jobs.py",
                           "first_run_machine.py", "first_run_programs.py",
                           "first_run_table.py"}) {
    std::filesystem::copy_file(std::filesystem::path("tests/gpu") / name,
                               folder / name);
  }
  const std::filesystem::path file = folder / "kernel_emulation_test";
  std::ofstream(file) << R"script(#!/bin/bash
echo "[ RUN      ] A.Passes"
echo "[       OK ] A.Passes (0 ms)"
if [[ "$*" != *A.Hangs* ]]; then
  echo "[ RUN      ] A.Hangs"
  sleep 100
fi
echo "[ RUN      ] A.Fails"
echo "[  FAILED  ] A.Fails (0 ms)"
exit 1
)script";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

TEST(FirstRunTest, TestThatHangsIsNamedAndTheOthersRun) {
  const std::filesystem::path top =
      absl::StrCat(testing::TempDir(), "/hanging_test");
  std::filesystem::remove_all(top);
  std::filesystem::create_directories(top / "tests/gpu");
  WriteHangingTest(top / "tests/gpu");
  ProgramRun run({top / "tests/gpu/first_run.sh", "--emulated",
                  "--only=kernels", "--timeout-factor=0.01",
                  absl::StrCat("--out=", (top / "results").string())});
  EXPECT_EQ(run.Finish(), 1) << run.error();
  EXPECT_THAT(run.output(),
              HasSubstr("| kernels | kernel_test | 2 | failed | <= 0 | fail | "
                        "1 passed; the timeout ended A.Hangs; failed: "
                        "A.Fails |"));
  EXPECT_THAT(run.output(), HasSubstr("| kernels | factor_test | - |  |  | "
                                      "skipped | the program is not here |"));
  EXPECT_THAT(run.output(), HasSubstr("0 passed, 1 failed, 2 skipped"));
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
