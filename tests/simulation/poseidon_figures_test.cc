// The simulator reproduces Poseidon's published figures (USENIX ATC 2017) with
// one set of constants for all rows. docs/benchmarks.md explains the constants.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/plan/model_table.h"
#include "server/admin/simulate/simulated_iteration.h"

namespace nereus {
namespace {

// Constants of the calibration. No row has a chosen number of its own.
constexpr double kComputeSeconds = 0.925;
constexpr double kBackwardShare = 2.0 / 3;
constexpr double kEffectiveRate = 12e9 / 8;  // Bytes/s, of 40 Gbit/s.
constexpr absl::Duration kLatency = absl::Microseconds(20);
constexpr absl::Duration kHostCopy = absl::Milliseconds(680);

constexpr int kBatch = 32;

WhatIf Vgg19With22kClasses(int nodes, double rate) {
  WhatIf what_if;
  const auto layers = LoadModel("vgg19-22k", kBatch);
  EXPECT_TRUE(layers.ok()) << layers.status();
  what_if.layers = *layers;
  what_if.times = SplitCompute(what_if.layers, absl::Seconds(kComputeSeconds),
                               kBackwardShare);
  what_if.plan.cluster = {nodes, nodes};
  what_if.node_rate = rate;
  what_if.latency = kLatency;
  what_if.host_copy = kHostCopy;
  what_if.waits_in_forward = false;
  return what_if;
}

struct Row {
  const char* name;
  std::optional<Scheme> scheme;
  Overlap overlap;
  int nodes;
  double seconds;  // Per iteration, as published.
};

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const auto add = [&](const char* name, std::optional<Scheme> scheme,
                       Overlap overlap, const std::vector<double>& seconds) {
    for (size_t i = 0; i < seconds.size(); ++i) {
      rows.push_back({name, scheme, overlap, 1 << i, seconds[i]});
    }
  };
  // The figure's data are seconds per 20 iterations.
  add("Poseidon", std::nullopt, Overlap::kWaitFree,
      {18.7 / 20, 18.9 / 20, 19.3 / 20});
  add("CaffeWithWaitFree", Scheme::kServer, Overlap::kWaitFree,
      {19.4 / 20, 20.8 / 20, 22.58 / 20});
  add("CaffeWithServers", Scheme::kServer, Overlap::kNone,
      {34.5 / 20, 36.8 / 20, 50.3 / 20});
  return rows;
}

class PoseidonFigureTest : public testing::TestWithParam<Row> {};

TEST_P(PoseidonFigureTest, SimulatedSecondsAreWithinTenPercentOfThePublished) {
  WhatIf what_if = Vgg19With22kClasses(GetParam().nodes, kEffectiveRate);
  what_if.plan.rules.forced = GetParam().scheme;
  what_if.job.overlap = GetParam().overlap;
  const auto result = SimulateIterations(what_if);
  ASSERT_TRUE(result.ok()) << result.status();
  const double seconds = absl::ToDoubleSeconds(result->iteration);
  EXPECT_NEAR(seconds / GetParam().seconds, 1.0, 0.1) << seconds;
}

INSTANTIATE_TEST_SUITE_P(Caffe40Gbit, PoseidonFigureTest,
                         testing::ValuesIn(Rows()), [](const auto& info) {
                           return absl::StrCat(info.param.name,
                                               info.param.nodes);
                         });

// Published at 10 Gbit/s: 16 nodes are 15.5 times as fast as one node, and only
// 8 to 9 times as fast if all layers go by the servers.
TEST(PoseidonHeadlineTest, HybridCommunicationScalesWhereServersDoNot) {
  WhatIf what_if = Vgg19With22kClasses(16, 10e9 / 8);
  const auto hybrid = SimulateIterations(what_if);
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  EXPECT_GE(hybrid->speedup, 14.5);
  EXPECT_LE(hybrid->speedup, 16.0);
  what_if.plan.rules.forced = Scheme::kServer;
  const auto servers = SimulateIterations(what_if);
  ASSERT_TRUE(servers.ok()) << servers.status();
  EXPECT_GE(servers->speedup, 7.5);
  EXPECT_LE(servers->speedup, 9.5);
}

}  // namespace
}  // namespace nereus
