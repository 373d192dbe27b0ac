// Workers that replay a model on a GPU, in jobs with real servers, in one
// process.

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/needs_gpu.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"
#include "worker/trainer/gpu_device.h"
#include "worker/trainer/replay.h"
#include "worker/trainer/replay_report.h"

namespace nereus {
namespace {

using nlohmann::json;

constexpr int64_t kSteps = 8;

// Largest difference, in seconds, between the times of one step by the clock
// that SpinCuda reads and by the clock of CUDA events.
constexpr double kClockError = 50e-6;

ReplayOptions Options() {
  ReplayOptions options;
  options.layers = SmallModel();
  for (size_t i = 0; i < options.layers.size(); ++i) {
    options.times.push_back({absl::Milliseconds(1), absl::Milliseconds(2)});
  }
  options.steps = kSteps;
  return options;
}

struct JobCase {
  const char* name;
  int workers = 1;
  std::optional<Scheme> forced;
  OptimizerPlace place = OptimizerPlace::kServer;
};

class GpuReplayTest : public NeedsGpu<testing::TestWithParam<JobCase>> {
 protected:
  // Runs the job of the case. Returns the reports of all workers, or no reports
  // after an error.
  std::vector<json> Run(const ReplayOptions& replay) {
    const JobCase& job = GetParam();
    ServerOptions options = PlainServerOptions();
    options.spec.workers = job.workers;
    options.spec.shards = 2;
    options.spec.rules.forced = job.forced;
    options.spec.options.optimizer_place = job.place;
    LocalCluster cluster(options);
    Mutex mu;
    std::vector<json> reports;
    const auto results =
        cluster.RunWorkers(job.workers, [&](int) -> absl::Status {
          ClientOptions client = cluster.client_options();
          client.optimizer = std::nullopt;
          const auto device = NEREUS_TRY(MakeGpuDevice(0));
          const ReplayReport report =
              NEREUS_TRY(Replay(replay, client, device.get()));
          MutexLock lock(&mu);
          reports.push_back(json::parse(ReplayJson(report)));
          return absl::OkStatus();
        });
    for (const absl::Status& result : results) {
      EXPECT_TRUE(result.ok()) << result;
      if (!result.ok()) return {};
    }
    return reports;
  }
};

TEST_P(GpuReplayTest, ReportHasTheTimesAndBytesOfTheModel) {
  const ReplayOptions options = Options();
  int64_t gradient_bytes = 0;
  for (const LayerSpec& layer : options.layers) {
    gradient_bytes += 4 * layer.parameters;
  }
  const std::vector<json> reports = Run(options);
  ASSERT_EQ(reports.size(), GetParam().workers);
  for (const json& report : reports) {
    EXPECT_EQ(report["event"], "replayed");
    EXPECT_EQ(report["device"], "cuda:0");
    EXPECT_EQ(report["steps"], kSteps);
    EXPECT_DOUBLE_EQ(report["compute_seconds"], 0.009);
    EXPECT_EQ(report["step_seconds"].size(), kSteps - 1);
    const double median = report["step_seconds_median"];
    EXPECT_GE(median, 0.009 - kClockError);
    EXPECT_LE(report["step_seconds_p05"], median);
    EXPECT_GE(report["step_seconds_p95"], median);
    EXPECT_GT(report["bytes_sent"], 0);
    EXPECT_GT(report["bytes_received"], 0);
    ASSERT_EQ(report["layers"].size(), options.layers.size());
    for (const json& layer : report["layers"]) {
      EXPECT_EQ(layer["rounds"], kSteps);
      EXPECT_GT(layer["latency_seconds_mean"], 0.0);
    }
    const json& copies = report["copies"];
    const double out = copies["bytes_out_per_step"];
    if (GetParam().forced == Scheme::kFactor) {
      // The factors of two layers are smaller than their gradients.
      EXPECT_LT(out, gradient_bytes);
      EXPECT_GT(out, 4 * options.layers[0].parameters);
    } else {
      EXPECT_EQ(out, gradient_bytes);
    }
    if (GetParam().forced == Scheme::kServer) {
      EXPECT_EQ(copies["bytes_in_per_step"], gradient_bytes);
    }
    for (const char* name : {"hidden_share", "hidden_share_out"}) {
      EXPECT_GE(copies[name], 0.0) << name;
      EXPECT_LE(copies[name], 1.0) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, GpuReplayTest,
    testing::Values(JobCase{"OneWorker", 1, Scheme::kServer},
                    JobCase{"OneWorkerUpdates", 1, Scheme::kServer,
                            OptimizerPlace::kWorker},
                    JobCase{"Server", 2, Scheme::kServer},
                    JobCase{"ServerWorkersUpdate", 2, Scheme::kServer,
                            OptimizerPlace::kWorker},
                    JobCase{"Ring", 2, Scheme::kRing},
                    JobCase{"RingWorkersUpdate", 2, Scheme::kRing,
                            OptimizerPlace::kWorker},
                    JobCase{"Factor", 2, Scheme::kFactor},
                    JobCase{"FactorWorkersUpdate", 2, Scheme::kFactor,
                            OptimizerPlace::kWorker}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nereus
