// Runs tests/gpu/first_run.sh without a GPU. The script says what it skipped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"

namespace nereus {
namespace {

using testing::HasSubstr;

TEST(FirstRunTest, RunWithoutAGpuSaysWhatItSkipped) {
  // Hides the GPU of a machine that has one.
  setenv("CUDA_VISIBLE_DEVICES", "-1", /*replace=*/1);
  ProgramRun run({"tests/gpu/first_run.sh", "--quick",
                  absl::StrCat("--out=", testing::TempDir(), "/first_run")});
  EXPECT_EQ(run.Finish(), 0) << run.error();
  for (const char* step :
       {"ceilings", "client", "jobs", "kernels", "replay", "sanitizers"}) {
    EXPECT_THAT(run.output(),
                HasSubstr(absl::StrCat(
                    "| ", step, " | all | - |  |  | skipped | no GPU: the")));
  }
  EXPECT_THAT(run.output(), HasSubstr("0 passed, 0 failed, 6 skipped"));
}

// Copies the script to `folder`, and writes a program there that takes the
// place of kernel_emulation_test. The test A.Hangs of this program hangs.
void WriteHangingTest(const std::filesystem::path& folder) {
  for (const char* name :
       {"first_run.sh", "first_run.py", "first_run_machine.py"}) {
    std::filesystem::copy_file(std::filesystem::path("tests/gpu") / name,
                               folder / name);
  }
  const std::filesystem::path file = folder / "kernel_emulation_test";
  std::ofstream(file) << R"script(#!/bin/bash
echo "[ RUN      ] A.Passes"
echo "[       OK ] A.Passes (0 ms)"
echo "[ RUN      ] A.Fails"
echo "[  FAILED  ] A.Fails (0 ms)"
echo "[ RUN      ] A.Hangs"
sleep 100
)script";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
}

TEST(FirstRunTest, TestThatHangsIsNamedAndTheRunGoesOn) {
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
                        "1 passed; failed: A.Fails; did not end: A.Hangs; the "
                        "timeout ended it after "));
  EXPECT_THAT(run.output(),
              HasSubstr("| kernels | factor_test | - |  |  | skipped | "
                        "tests/gpu/factor_emulation_test is not here |"));
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
