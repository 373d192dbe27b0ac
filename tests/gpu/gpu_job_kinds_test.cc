// Compares jobs of many kinds on GPUs with the same jobs on CPUs.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/gpu/gpu_toy_worker.h"
#include "tests/testing/local_cluster.h"
#include "tests/testing/toy_worker.h"

namespace nereus {
namespace {

constexpr int kWorkers = 4;

struct JobCase {
  const char* name;
  std::optional<Scheme> forced;
  OptimizerPlace place = OptimizerPlace::kServer;
  // True if workers wait for each layer in the next forward pass.
  bool by_layer = false;
  WireType wire = WireType::kFloat32;
  int64_t fusion_bytes = kNoFusion;
  // True if the pinned memory of a worker is little more than its largest
  // layer.
  bool scarce = false;
  double sparsity = 0.0;
  NanPolicy nan = NanPolicy::kFail;
  UpdateRule rule = UpdateRule::kSgd;
  // True if workers push dense gradients of layers with factors in some steps.
  bool dense = false;
};

ServerOptions Options(const JobCase& job) {
  ServerOptions options = GpuJob(kWorkers, 2);
  options.spec.rules.forced = job.forced;
  options.spec.rules.wire = job.wire;
  options.spec.options.deterministic = true;
  options.spec.options.optimizer_place = job.place;
  options.spec.options.fusion_bytes = job.fusion_bytes;
  options.spec.options.nan = job.nan;
  if (job.sparsity > 0) {
    options.spec.options.sparsity.share = job.sparsity;
    options.spec.options.sparsity.block_elements = 4096;
    options.spec.options.sparsity.dense_steps = 3;
  }
  // With this momentum, norms of blocks do not depend on the order of
  // additions.
  options.spec.options.optimizer.momentum = 0.5f;
  options.spec.options.optimizer.rule = job.rule;
  return options;
}

class AllJobsTest : public NeedsGpu<testing::TestWithParam<JobCase>> {};

// All gradients are whole numbers, and four workers contribute. So sums and
// means are exact, and do not depend on the order of additions.
TEST_P(AllJobsTest, GpusAndCpusComputeEqualBits) {
  const JobCase& job = GetParam();
  constexpr int64_t kSteps = 10;
  const bool by_layer = job.by_layer && job.place == OptimizerPlace::kServer;
  std::vector<std::vector<std::vector<float>>> replicas;
  {
    LocalCluster cluster(Options(job));
    std::vector<ToyWorker> workers;
    for (int i = 0; i < kWorkers; ++i) {
      workers.emplace_back(SmallModel()).set_pushes_dense(job.dense);
    }
    const auto results = cluster.RunWorkers(kWorkers, [&](int i) {
      return by_layer ? workers[i].TrainLayerByLayer(cluster.client_options(),
                                                     kSteps)
                      : workers[i].Train(cluster.client_options(), kSteps);
    });
    ASSERT_TRUE(AllOk(results));
    replicas.push_back(workers[0].parameters());
  }
  GpuOptions gpu;
  if (job.scarce) gpu.staging_bytes = int64_t{5} << 18;
  LocalCluster cluster(Options(job));
  std::vector<GpuToyWorker> workers(kWorkers);
  for (GpuToyWorker& worker : workers) worker.set_pushes_dense(job.dense);
  const auto results = cluster.RunWorkers(kWorkers, [&](int i) {
    return by_layer ? workers[i].TrainLayerByLayer(cluster.client_options(),
                                                   kSteps, gpu)
                    : workers[i].Train(cluster.client_options(), kSteps, gpu);
  });
  ASSERT_TRUE(AllOk(results));
  for (const GpuToyWorker& worker : workers) {
    EXPECT_EQ(worker.parameters(), replicas[0]);
  }
  EXPECT_NE(replicas[0][0][0], 1.0f);  // Training has changed the parameters.
}

INSTANTIATE_TEST_SUITE_P(
    All, AllJobsTest,
    testing::Values(
        JobCase{"Auto", std::nullopt}, JobCase{"Server", Scheme::kServer},
        JobCase{"Factor", Scheme::kFactor},
        JobCase{"FactorWorkersUpdate", Scheme::kFactor,
                OptimizerPlace::kWorker},
        JobCase{"Ring", Scheme::kRing},
        JobCase{"WorkersUpdate", std::nullopt, OptimizerPlace::kWorker},
        JobCase{"RingWorkersUpdate", Scheme::kRing, OptimizerPlace::kWorker},
        JobCase{"Dear", std::nullopt, OptimizerPlace::kServer, true},
        JobCase{"DearWorkersUpdate", Scheme::kRing, OptimizerPlace::kWorker,
                true},
        JobCase{"Bfloat16", Scheme::kServer, OptimizerPlace::kServer, false,
                WireType::kBfloat16},
        JobCase{"Fused", std::nullopt, OptimizerPlace::kServer, false,
                WireType::kFloat32, 1 << 20},
        JobCase{"Scarce", std::nullopt, OptimizerPlace::kServer, false,
                WireType::kFloat32, kNoFusion, true},
        JobCase{"ScarceFused", std::nullopt, OptimizerPlace::kWorker, false,
                WireType::kFloat32, 1 << 22, true},
        JobCase{"ScarceFactors", Scheme::kFactor, OptimizerPlace::kWorker, true,
                WireType::kFloat32, kNoFusion, true},
        JobCase{"Sparse", Scheme::kServer, OptimizerPlace::kServer, false,
                WireType::kFloat32, kNoFusion, false, 0.5},
        JobCase{"SparseRing", Scheme::kRing, OptimizerPlace::kServer, false,
                WireType::kFloat32, kNoFusion, false, 0.7},
        JobCase{"SparseDearScarce", Scheme::kServer, OptimizerPlace::kServer,
                true, WireType::kFloat32, kNoFusion, true, 0.9},
        JobCase{"SparseFused", std::nullopt, OptimizerPlace::kServer, false,
                WireType::kBfloat16, 1 << 20, false, 0.8},
        JobCase{"Votes", std::nullopt, OptimizerPlace::kServer, false,
                WireType::kFloat32, kNoFusion, false, 0.0, NanPolicy::kSkip},
        JobCase{.name = "FactorAdam",
                .forced = Scheme::kFactor,
                .rule = UpdateRule::kAdam},
        JobCase{.name = "Dense", .forced = Scheme::kFactor, .dense = true},
        JobCase{.name = "DenseWorkersUpdate",
                .forced = Scheme::kFactor,
                .place = OptimizerPlace::kWorker,
                .scarce = true,
                .dense = true},
        JobCase{
            .name = "DenseServer", .forced = Scheme::kServer, .dense = true},
        JobCase{.name = "DenseVotes",
                .forced = Scheme::kFactor,
                .nan = NanPolicy::kSkip,
                .dense = true},
        JobCase{.name = "RingAdam",
                .forced = Scheme::kRing,
                .rule = UpdateRule::kAdam}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace nereus
