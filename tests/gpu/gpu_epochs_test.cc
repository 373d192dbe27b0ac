// Tests changes of the epoch in jobs of GPU workers: workers join, the job goes
// back to a checkpoint, and plans change. Values that only a GPU has must not
// be lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "worker/public/gpu.h"

namespace nereus {
namespace {

using GpuEpochsTest = NeedsGpu<testing::Test>;

// A joining worker receives parameters and optimizer state that only the GPU of
// its donor has. There the caller's optimizer has updated them, or, in a
// worker-owned layer, the job's optimizer.
class JoinTest : public NeedsGpu<testing::TestWithParam<
                     std::pair<OptimizerPlace, std::optional<Scheme>>>> {};

TEST_P(JoinTest, WorkerReceivesParametersAndStateFromTheGpu) {
  const auto [place, forced] = GetParam();
  const bool has_state = place == OptimizerPlace::kWorker;
  ServerOptions options = GpuJob(1, 1);
  options.spec.max_workers = 2;
  options.spec.rules.forced = forced;
  options.spec.options.optimizer_place = place;
  options.spec.options.optimizer.momentum = 0.5f;
  LocalCluster cluster(options);
  GpuToyWorker first;
  ASSERT_TRUE(first.Connect(cluster.client_options(), {}, has_state).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.NextStep().ok());
  GpuToyWorker second;
  std::atomic<bool> joined{false};
  absl::Status connected;
  std::thread joins([&] {
    connected = second.Connect(cluster.client_options(), {}, has_state);
    joined = true;
    for (int i = 0; i < 5 && connected.ok(); ++i) {
      connected = second.NextStep().status();
    }
  });
  int64_t together = 0;
  while (together < 5) {
    const auto begun = first.NextStep();
    ASSERT_TRUE(begun.ok()) << begun.status();
    if (begun->workers == 2) ++together;
  }
  joins.join();
  ASSERT_TRUE(connected.ok()) << connected;
  EXPECT_EQ(first.parameters(), second.parameters());
  const auto results = cluster.RunWorkers(2, [&](int i) {
    GpuToyWorker& worker = i == 0 ? first : second;
    return worker.client()->Leave(worker.stream());
  });
  EXPECT_TRUE(AllOk(results));
}

INSTANTIATE_TEST_SUITE_P(
    All, JoinTest,
    testing::Values(std::pair(OptimizerPlace::kWorker, std::nullopt),
                    std::pair(OptimizerPlace::kServer, Scheme::kFactor),
                    std::pair(OptimizerPlace::kServer, Scheme::kRing)));

TEST_F(GpuEpochsTest, JobThatGoesBackRestoresTheGpu) {
  struct Kind {
    OptimizerPlace place;
    std::optional<Scheme> forced;
  };
  for (const Kind& kind : {Kind{OptimizerPlace::kServer, std::nullopt},
                           Kind{OptimizerPlace::kServer, Scheme::kFactor},
                           Kind{OptimizerPlace::kServer, Scheme::kRing},
                           Kind{OptimizerPlace::kWorker, std::nullopt}}) {
    ServerOptions options = GpuJob(1, 2);
    options.spec.rules.forced = kind.forced;
    options.spec.options.optimizer_place = kind.place;
    options.spec.options.optimizer.momentum = 0.5f;
    options.spec.options.checkpoint_every = 7;
    options.checkpoint_dir = absl::StrCat(testing::TempDir(), "/gpu_goes_back");
    std::filesystem::remove_all(options.checkpoint_dir);
    LocalCluster cluster(options);
    GpuToyWorker worker;
    ASSERT_TRUE(worker.Connect(cluster.client_options()).ok());
    std::vector<std::vector<std::vector<float>>> after;
    for (int i = 0; i < 20; ++i) {
      const auto begun = worker.NextStep();
      ASSERT_TRUE(begun.ok()) << begun.status();
      ASSERT_EQ(begun->step, i);
      after.push_back(worker.parameters());
    }
    ASSERT_TRUE(cluster.AwaitStatus(
        [](const JobStatus& status) { return status.checkpoint.round >= 13; }));
    cluster.Replace(1);
    absl::StatusOr<StepInfo> begun;
    do {
      begun = worker.NextStep();
    } while (absl::IsOutOfRange(begun.status()));
    ASSERT_TRUE(begun.ok()) << begun.status();
    ASSERT_EQ(begun->step, 14);
    EXPECT_EQ(worker.parameters(), after[14]);
    const absl::Status left = worker.client()->Leave(worker.stream());
    EXPECT_TRUE(left.ok()) << left;
  }
}

// An eighth of the layer "conv", which has 210,000 values: each sample has one
// of these. A single value would be found after a quarter of an hour.
constexpr size_t kMeddledBytes = size_t{210'000} / 8 * sizeof(float);

// The values that differ are in the GPU's memory alone. Workers that do not
// differ train for two seconds before that, and no sample ends the job.
TEST_F(GpuEpochsTest, ParametersThatDifferOnAGpuEndTheJob) {
  struct Kind {
    OptimizerPlace place;
    std::optional<Scheme> forced;
  };
  for (const Kind& kind : {Kind{OptimizerPlace::kWorker, std::nullopt},
                           Kind{OptimizerPlace::kServer, Scheme::kRing}}) {
    ServerOptions options = GpuJob(3, 1);
    options.spec.rules.forced = kind.forced;
    options.spec.options.optimizer_place = kind.place;
    LocalCluster cluster(options);
    const absl::Time meddles_at = absl::Now() + absl::Seconds(3);
    const auto results = cluster.RunWorkers(3, [&](int i) -> absl::Status {
      GpuToyWorker worker;
      ClientOptions own = cluster.client_options();
      own.name = absl::StrCat("w", i);
      NEREUS_TRY(worker.Connect(own));
      bool meddles = i == 1;
      while (true) {
        NEREUS_TRY(worker.NextStep().status());
        absl::SleepFor(absl::Milliseconds(5));
        if (!meddles || absl::Now() < meddles_at) continue;
        meddles = false;
        NEREUS_CUDA(cudaMemsetAsync(worker.device_parameters(0), 0x3f,
                                    kMeddledBytes, worker.stream()));
      }
    });
    EXPECT_GE(absl::Now(), meddles_at);
    for (const absl::Status& status : results) {
      EXPECT_THAT(
          std::string(status.message()),
          testing::AllOf(testing::HasSubstr("sampled parameters of layer"),
                         testing::HasSubstr(
                             ": worker w1 deviates from the other workers")))
          << status;
    }
  }
}

// With two servers and two workers, the layer "fc" moves fewer bytes by
// factors; with four workers, by the servers.
TEST_F(GpuEpochsTest, PlansChangeWhileAGpuTrains) {
  for (const OptimizerPlace place :
       {OptimizerPlace::kServer, OptimizerPlace::kWorker}) {
    ServerOptions options = GpuJob(2, 2);
    options.spec.max_workers = 4;
    options.spec.rules.cost = CostKind::kBytes;
    options.spec.rules.wire = WireType::kBfloat16;
    options.spec.options.optimizer_place = place;
    LocalCluster cluster(options);
    const std::vector<LayerSpec> model = {
        {"conv", LayerKind::kConvolution, 30, 70, 2100, 1},
        {"fc", LayerKind::kFullyConnected, 64, 64, 64 * 65, 26, true}};
    std::deque<GpuToyWorker> workers;
    while (workers.size() < 4) workers.emplace_back(model);
    constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();
    std::atomic<bool> some_done{false};
    std::atomic<int> joined{0};
    std::atomic<int64_t> last_step{kNoStep};
    const auto results = cluster.RunWorkers(4, [&](int i) -> absl::Status {
      GpuToyWorker& worker = workers[i];
      // Workers 2 and 3 join while workers 0 and 1 train. Workers 0 and 1 must
      // train until all have joined.
      while (i >= 2 && !some_done) absl::SleepFor(absl::Milliseconds(5));
      NEREUS_TRY(worker.Connect(cluster.client_options_on(i)));
      const bool is_last = ++joined == 4;
      EXPECT_TRUE(i >= 2 || worker.scheme(1) == "factor");
      const absl::Time deadline = absl::Now() + LocalCluster::kPatience;
      for (int64_t step = 0; step < last_step;) {
        step = NEREUS_TRY(worker.NextStep()).step;
        some_done = some_done || step > 3;
        // The worker that joins last chooses the last step. The other workers
        // cannot finish another step without it, so all read `last_step` in
        // time.
        if (is_last && last_step == kNoStep) last_step = step + 200;
        if (absl::Now() > deadline) return DeadlineExceededError("steps");
      }
      EXPECT_NE(worker.scheme(1), "factor");
      return worker.client()->Leave(worker.stream());
    });
    ASSERT_TRUE(AllOk(results));
    for (const GpuToyWorker& worker : workers) {
      EXPECT_EQ(worker.parameters(), workers[0].parameters());
    }
  }
}

}  // namespace
}  // namespace nereus
