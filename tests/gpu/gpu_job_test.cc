// Tests whole jobs of real processes. Their workers share a GPU; or each worker
// has an emulated GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/needs_gpu.h"
#include "tests/testing/program_run.h"
#include "tests/testing/script_run.h"

// A worker with an emulated GPU is another program.
#ifndef NEREUS_GPU_WORKER
#define NEREUS_GPU_WORKER "worker/trainer/nereus-worker"
#endif

namespace nereus {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GpuJobTest : public NeedsGpu<testing::Test> {
 protected:
  // Trains a job of two workers on generated images. Returns its report.
  json Train(const std::vector<std::string>& flags) {
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
    return json::parse(in);
  }
};

TEST_F(GpuJobTest, JobOnAGpuLearnsAsWellAsOnACpu) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{
           {},
           {"--optimizer=worker", "--scheme=ring"},
           {"--update=adam", "--learning-rate=0.001"},
           {"--optimizer=worker", "--update=adam", "--learning-rate=0.001",
            "--wire=bf16"}}) {
    std::vector<std::string> on = flags;
    on.push_back("--device=cpu");
    const double on_cpu = Train(on).at("test_accuracy");
    on.back() = "--device=cuda:0";
    const json report = Train(on);
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

// Replays: nereus-worker with --replay.

// Writes a model of 70,650 parameters and its times. The function `replay` runs
// a worker that replays them, in the job of the coordinator at $control.
constexpr char kReplay[] = R"(
cat > $dir/model.csv <<END
name,kind,m,n,parameters,rows_per_sample
conv,conv,64,1000,64000,49
fc,fc,50,132,6650,1
END
cat > $dir/times.json <<END
{"layers": [
 {"name": "conv", "forward_seconds": 0.002, "backward_seconds": 0.004},
 {"name": "fc", "forward_seconds": 0.001, "backward_seconds": 0.002}]}
END
replay() {
  )" NEREUS_GPU_WORKER R"( --coordinator=$control --model=$dir/model.csv \
    --batch=4 --replay=$dir/times.json --steps=6 "$@"
}
)";

class GpuReplayJobTest : public ScriptRun, public NeedsGpu<testing::Test> {};

TEST_F(GpuReplayJobTest, GpuAndCpuReportAlikeInOneJob) {
  ASSERT_EQ(RunScript(absl::StrCat(kReplay, R"(
start_server --shard=0 --servers=1 --workers=2 --scheme=server
replay --device=cuda:0 --json --trace=$dir/trace.json > $dir/gpu.json &
replay --device=cpu --json
wait
cat $dir/gpu.json
grep -o '"copy out"' $dir/trace.json | head -1
)")),
            0)
      << output();
  const std::vector<std::string> lines = absl::StrSplit(output(), '\n');
  ASSERT_GE(lines.size(), 3u) << output();
  const json cpu = json::parse(lines[0]);
  const json gpu = json::parse(lines[1]);
  EXPECT_EQ(lines[2], "\"copy out\"");
  EXPECT_EQ(cpu["device"], "cpu");
  EXPECT_EQ(gpu["device"], "cuda:0");
  for (const char* name : {"event", "compute_seconds", "steps"}) {
    EXPECT_EQ(cpu[name], gpu[name]) << name;
  }
  // Both workers send six gradients. The carrier of a chunk sends the sum to
  // the server and the outcome to its mate. The first worker also sends the
  // initial parameters.
  EXPECT_EQ(cpu["layers"][0]["name"], gpu["layers"][0]["name"]);
  for (const json& report : {cpu, gpu}) {
    EXPECT_GE(report["bytes_sent"], 6 * 4 * 70650);
    EXPECT_LE(report["bytes_sent"], 13 * 4 * 70650 + 10000);
  }
  EXPECT_EQ(cpu["copies"], nullptr);
  EXPECT_EQ(gpu["copies"]["bytes_out_per_step"], 4 * 70650);
  EXPECT_EQ(gpu["copies"]["bytes_in_per_step"], 4 * 70650);
  EXPECT_GE(gpu["step_seconds_median"], 0.00895);
}

TEST_F(GpuReplayJobTest, TextNamesTheDeviceAndTheCopies) {
  ASSERT_EQ(RunScript(absl::StrCat(kReplay, R"(
start_server --shard=0 --servers=1 --workers=1 --scheme=server
replay --device=cuda:0
wait
)")),
            0)
      << output();
  EXPECT_THAT(output(), HasSubstr("replayed 6 steps on cuda:0: median"));
  EXPECT_THAT(output(), HasSubstr("copies per step: 282600 bytes to the host"));
  EXPECT_THAT(output(), HasSubstr("layer conv: scheme server"));
}

TEST_F(GpuReplayJobTest, MissingGpuEndsTheReplayAndIsNamed) {
  EXPECT_EQ(RunScript(absl::StrCat(kReplay, R"(
control=localhost:1
replay --device=cuda:77
)")),
            2);
  EXPECT_THAT(output(), HasSubstr("GPU 77"));
}

TEST_F(GpuReplayJobTest, WrongFlagsAreRefusedByName) {
  for (const auto& [flags, says] :
       std::vector<std::pair<std::string, std::string>>{
           {"--device=cuda", "--device: \"cuda\" is neither cpu nor cuda:N"},
           {"--device=cuda:0 --epochs=2",
            "--epochs does not count with --replay"},
           {"--device=cuda:0 --standalone", "--standalone"},
           {"--device=cpu --trace=t", "--trace records the work of a GPU"}}) {
    EXPECT_EQ(
        RunScript(absl::StrCat(kReplay, "control=localhost:1\nreplay ", flags)),
        2)
        << flags;
    EXPECT_THAT(output(), HasSubstr(says));
  }
}

}  // namespace
}  // namespace nereus
