// Each node of a simulated cluster sends and receives exactly the bytes that
// common/plan/traffic predicts. The cluster counts the frames of the production
// machines.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/plan/traffic.h"
#include "gtest/gtest.h"
#include "tests/simulation/simulated_cluster.h"
#include "tests/simulation/simulated_jobs.h"

namespace nereus {
namespace {

struct TrafficCase {
  const char* scheme;
  std::optional<Scheme> forced;
  int nodes;       // Number of nodes, each with a worker and a server.
  int by_factors;  // Number of layers by factors, of three that may be.
  Overlap overlap = Overlap::kWaitFree;
  WireType wire = WireType::kFloat32;
};

std::vector<TrafficCase> AllCases() {
  std::vector<TrafficCase> cases;
  for (const int nodes : {2, 4, 8}) {
    // Layer fc1 has many rows. Its factors move fewer bytes than its gradient
    // only if there are two nodes.
    const int chosen = nodes == 2 ? 2 : 1;
    cases.push_back({"Server", Scheme::kServer, nodes, 0});
    cases.push_back({"Factor", Scheme::kFactor, nodes, 3});
    cases.push_back({"Ring", Scheme::kRing, nodes, 0});
    cases.push_back({"Auto", std::nullopt, nodes, chosen});
    cases.push_back({"Bfloat16", std::nullopt, nodes, chosen,
                     Overlap::kWaitFree, WireType::kBfloat16});
    cases.push_back({"Float16Ring", Scheme::kRing, nodes, 0, Overlap::kWaitFree,
                     WireType::kFloat16});
  }
  return cases;
}

// Returns layers of many shapes. The last one has two chunks, so that no
// placement is even.
std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers = MixedLayers();
  const int64_t elements = kChunkElementsMax + 77;
  layers.push_back(
      {"large", LayerKind::kConvolution, 1, elements, elements, 1});
  return layers;
}

class TrafficSimulationTest : public testing::TestWithParam<TrafficCase> {};

TEST_P(TrafficSimulationTest, EveryNodeMovesThePredictedBytes) {
  constexpr int64_t kSteps = 3;
  SimulatedClusterOptions options;
  options.workers = GetParam().nodes;
  options.shards = GetParam().nodes;
  options.rules.forced = GetParam().forced;
  options.job.overlap = GetParam().overlap;
  options.job.chunk_bytes = kChunkBytesMax;
  options.rules.wire = GetParam().wire;
  SimulatedCluster cluster(options, RandomWorkload(Layers(), 1));
  ASSERT_TRUE(cluster.RunSteps(kSteps).ok());

  const Job& job = cluster.job();
  EXPECT_EQ(absl::c_count(job.routes, Route{Scheme::kFactor, GetParam().wire}),
            GetParam().by_factors);
  // Each worker of a running job counts as a host of its own.
  const HostMap hosts = HostMap::OneEach(job.worker_count(), job.shards());
  const std::vector<int64_t> initial = PredictInitialBytes(
      job.routes, job.placement, hosts, kFrameHeaderBytes, kFrameElementsMax,
      /*servers_update=*/true);
  const std::vector<int64_t> step =
      PredictLinkBytes(job.layers, job.routes, job.placement, hosts,
                       kFrameHeaderBytes, kFrameElementsMax);
  std::vector<int64_t> predicted;
  for (size_t i = 0; i < step.size(); ++i) {
    EXPECT_GT(step[i], 0) << "node " << i;
    predicted.push_back(initial[i] + kSteps * step[i]);
  }
  EXPECT_EQ(cluster.connections().node_bytes(), predicted);
}

INSTANTIATE_TEST_SUITE_P(SchemesAndNodes, TrafficSimulationTest,
                         testing::ValuesIn(AllCases()), [](const auto& info) {
                           return absl::StrCat(info.param.scheme,
                                               info.param.nodes);
                         });

}  // namespace
}  // namespace nereus
