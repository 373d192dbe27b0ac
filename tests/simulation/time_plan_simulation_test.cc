// The plan that is made by time is, in the simulator that runs the protocol
// itself, about as good as the best single scheme, and better than Poseidon's
// rule where that overlooks what a product of factors, or a busy link, takes.
// tests/benchmarks/plan_benchmark.py has more models and machines.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/plan/model_table.h"
#include "common/simulation/simulated_iteration.h"
#include "gtest/gtest.h"

namespace nereus {
namespace {

struct Case {
  const char* model;
  double compute_seconds;
  double rate;  // Bits a second.
  int workers;
};

double Simulate(const Case& c, std::optional<Scheme> forced, CostKind cost) {
  WhatIf what_if;
  auto layers = LoadModel(c.model, 32);
  EXPECT_TRUE(layers.ok()) << layers.status();
  what_if.layers = *std::move(layers);
  what_if.times =
      SplitCompute(what_if.layers, absl::Seconds(c.compute_seconds), 0.667);
  what_if.plan.cluster = {c.workers, c.workers};
  what_if.plan.rules.forced = forced;
  what_if.plan.rules.cost = cost;
  what_if.node_rate = c.rate / 8;
  what_if.latency = absl::Microseconds(20);
  what_if.iterations = 2;
  const auto result = SimulateIterations(what_if, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return absl::ToDoubleSeconds(result->iteration);
}

TEST(TimePlanTest, IsAboutAsGoodAsTheBestSingleScheme) {
  double gain = 0;
  for (const Case& c : {Case{"alexnet", 0.1, 1e9, 4},
                        {"alexnet", 0.1, 1e10, 16},
                        {"vgg19", 0.5, 1e9, 2},
                        {"vgg19", 0.5, 1e10, 8},
                        {"resnet-50", 0.3, 1e9, 8},
                        {"resnet-50", 0.3, 1e10, 4},
                        {"bert-base", 0.5, 1e9, 4}}) {
    const std::string where =
        std::string(c.model) + " on " + std::to_string(c.workers);
    const double best =
        std::min({Simulate(c, Scheme::kServer, CostKind::kBytes),
                  Simulate(c, Scheme::kFactor, CostKind::kBytes),
                  Simulate(c, Scheme::kRing, CostKind::kBytes)});
    const double planned = Simulate(c, std::nullopt, CostKind::kTime);
    EXPECT_LT(planned, 1.05 * best) << where;
    gain =
        std::max(gain, Simulate(c, std::nullopt, CostKind::kBytes) / planned);
  }
  EXPECT_GT(gain, 1.05);
}

}  // namespace
}  // namespace nereus
