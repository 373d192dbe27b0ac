// Tests whole jobs of real processes. Their workers share a GPU; or each worker
// has an emulated GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/device_array.h"
#include "tests/testing/program_run.h"

// A worker with an emulated GPU is another program.
#ifndef NEREUS_GPU_WORKER
#define NEREUS_GPU_WORKER "worker/trainer/nereus-worker"
#endif

namespace nereus {
namespace {

using testing::HasSubstr;

class GpuJobTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const why = WhyNoGpu();
    if (why != nullptr) GTEST_SKIP() << "no GPU: " << why;
  }

  // Trains a job of two workers on generated images. Returns its report.
  nlohmann::json Train(const std::vector<std::string>& flags) {
    const std::string file =
        absl::StrCat(testing::TempDir(), "/gpu_job_", getpid(), ".json");
    std::vector<std::string> command = {"server/admin/nereusctl",
                                        "local",
                                        "--workers=2",
                                        "--servers=2",
                                        "--model=mlp",
                                        "--limit=2000",
                                        "--epochs=2",
                                        absl::StrCat("--json=", file),
                                        "--worker-binary=" NEREUS_GPU_WORKER};
    command.insert(command.end(), flags.begin(), flags.end());
    ProgramRun run(command);
    EXPECT_EQ(run.Finish(), 0) << run.error();
    std::ifstream in(file);
    return nlohmann::json::parse(in);
  }
};

TEST_F(GpuJobTest, JobOnAGpuLearnsAsWellAsOnACpu) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{
           {},
           {"--optimizer=worker", "--scheme=ring"},
           {"--overlap=dear", "--update=adam", "--learning-rate=0.001"},
           {"--optimizer=worker", "--update=adam", "--learning-rate=0.001",
            "--wire=bf16"}}) {
    std::vector<std::string> on = flags;
    on.push_back("--device=cpu");
    const double on_cpu = Train(on).at("test_accuracy");
    on.back() = "--device=cuda:0";
    const nlohmann::json report = Train(on);
    const std::string what = testing::PrintToString(flags);
    EXPECT_EQ(report.at("replicas_equal"), true) << what;
    EXPECT_GE(on_cpu, 0.7) << what;
    EXPECT_NEAR(report.at("test_accuracy"), on_cpu, 0.02) << what;
  }
}

TEST_F(GpuJobTest, MissingGpuEndsTheJobAndIsNamed) {
  ProgramRun run({"server/admin/nereusctl", "local", "--workers=1",
                  "--servers=1", "--device=cuda:77",
                  "--worker-binary=" NEREUS_GPU_WORKER});
  EXPECT_NE(run.Finish(), 0);
  EXPECT_THAT(run.error(), HasSubstr("GPU 77"));
}

}  // namespace
}  // namespace nereus
