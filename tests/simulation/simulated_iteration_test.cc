// Compares the answers of `nereusctl simulate` with times and bytes that are
// computed by hand or by common/plan/traffic.

#include "server/admin/simulate/simulated_iteration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/plan/placement.h"
#include "common/plan/traffic.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr double kRate = 1e9;  // Bytes/s.

std::vector<LayerSpec> Layers() {
  return {{"conv1", LayerKind::kConvolution, 64, 576, 36928, 5000},
          {"norm", LayerKind::kVector, 1, 64, 128, 1},
          {"conv2", LayerKind::kConvolution, 512, 4608, 2359808, 500},
          {"fc1", LayerKind::kFullyConnected, 2000, 3000, 6002000, 8, true},
          {"fc2", LayerKind::kFullyConnected, 500, 2000, 1000500, 8, true}};
}

WhatIf Question(int workers, int servers) {
  WhatIf what_if;
  what_if.layers = Layers();
  what_if.times = SplitCompute(what_if.layers, absl::Milliseconds(30), 2.0 / 3);
  what_if.plan.cluster = {workers, servers};
  what_if.node_rate = kRate;
  what_if.latency = absl::Microseconds(20);
  return what_if;
}

IterationResult Answer(const WhatIf& what_if) {
  auto result = SimulateIterations(what_if);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

double SecondsOf(const WhatIf& what_if) {
  return absl::ToDoubleSeconds(Answer(what_if).iteration);
}

TEST(SimulatedIterationTest, HostsMoveTheBytesOfThePlan) {
  for (const auto& [workers, servers] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 2}, {5, 5}, {6, 2}, {3, 7}}) {
    for (const std::optional<Scheme> forced :
         {std::optional<Scheme>(), std::optional(Scheme::kServer),
          std::optional(Scheme::kFactor), std::optional(Scheme::kRing),
          std::optional(Scheme::kDirect)}) {
      SCOPED_TRACE(absl::StrCat(
          workers, " workers, ", servers, " servers, scheme ",
          forced.has_value() ? SchemeName(*forced) : "of the plan"));
      WhatIf what_if = Question(workers, servers);
      what_if.plan.rules.forced = forced;
      const IterationResult result = Answer(what_if);
      const auto placement = Placement::Make(what_if.layers, servers);
      ASSERT_TRUE(placement.ok());
      const HostMap hosts = HostMap::OneEach(workers, servers);
      EXPECT_EQ(result.node_bytes,
                PredictLinkBytes(what_if.layers, result.plan.routes, *placement,
                                 hosts, kFrameHeaderBytes, kFrameElementsMax));
      EXPECT_EQ(absl::c_accumulate(result.layer_bytes, int64_t{0}),
                result.node_bytes[result.busiest_node]);
    }
  }
}

// Worker 0 shares a host with the only shard, so only worker 1 uses the
// network. The gradient is one frame. The result leaves when that frame has
// arrived, so the two transfers do not overlap.
TEST(SimulatedIterationTest, EachFrameTakesItsSizeOverTheRatePlusTheLatency) {
  WhatIf what_if = Question(2, 1);
  what_if.layers = {{"conv", LayerKind::kConvolution, 64, 1000, 64000, 1}};
  what_if.times = {{absl::Milliseconds(1), absl::Milliseconds(2)}};
  const double frame = (64000 * 4 + kFrameHeaderBytes) / kRate;
  what_if.waits_in_forward = false;
  EXPECT_NEAR(SecondsOf(what_if), 0.003 + 2 * (frame + 20e-6), 1e-8);
}

TEST(SimulatedIterationTest, SingleHostTakesItsComputeTime) {
  for (const Overlap overlap : {Overlap::kWaitFree, Overlap::kNone}) {
    WhatIf what_if = Question(1, 1);
    what_if.job.overlap = overlap;
    const IterationResult result = Answer(what_if);
    EXPECT_EQ(result.iteration, result.single_node);
    EXPECT_EQ(result.network_exposed, absl::ZeroDuration());
    EXPECT_EQ(result.speedup, 1.0);
    EXPECT_EQ(result.node_bytes, std::vector<int64_t>{0});
  }
}

TEST(SimulatedIterationTest, HostSendsOneSumForItsWorkers) {
  WhatIf what_if = Question(4, 1);
  what_if.plan.rules.forced = Scheme::kServer;
  const IterationResult apart = Answer(what_if);
  what_if.plan.cluster.hosts = 2;
  const IterationResult together = Answer(what_if);
  // The server is on host 0, and serves host 1, which sends one sum.
  ASSERT_EQ(together.node_bytes.size(), 2u);
  EXPECT_EQ(together.node_bytes[0], apart.node_bytes[1]);
  EXPECT_EQ(together.node_bytes[1], apart.node_bytes[1]);
  EXPECT_LT(together.iteration, apart.iteration);
  // With partial rounds each worker sends its own gradient.
  what_if.job.rounds.quorum = Quorum::kEach;
  EXPECT_EQ(Answer(what_if).node_bytes[1], 2 * apart.node_bytes[1]);
}

TEST(SimulatedIterationTest, LinksOfHostsCarryThePredictedBytes) {
  for (const Scheme scheme : kSchemes) {
    for (const auto& [workers, hosts] : {std::pair{8, 2}, {3, 2}, {4, 1}}) {
      WhatIf what_if = Question(workers, 2);
      what_if.plan.rules.forced = scheme;
      what_if.plan.cluster.hosts = hosts;
      const IterationResult result = Answer(what_if);
      const auto placement = Placement::Make(what_if.layers, 2);
      ASSERT_TRUE(placement.ok()) << placement.status();
      EXPECT_EQ(result.node_bytes,
                PredictLinkBytes(what_if.layers, result.plan.routes, *placement,
                                 HostMap::Of(what_if.plan.cluster),
                                 kFrameHeaderBytes, kFrameElementsMax))
          << SchemeName(scheme) << ", " << workers << " workers, " << hosts
          << " hosts";
    }
  }
}

TEST(SimulatedIterationTest, HostsWithOneWorkerChangeNothing) {
  for (const Scheme scheme : kSchemes) {
    WhatIf what_if = Question(4, 2);
    what_if.plan.rules.forced = scheme;
    const IterationResult without = Answer(what_if);
    what_if.plan.cluster.hosts = 4;
    const IterationResult with = Answer(what_if);
    EXPECT_EQ(with.iteration, without.iteration);
    EXPECT_EQ(with.node_bytes, without.node_bytes);
  }
}

TEST(SimulatedIterationTest, SingleHostIsLimitedByItsMemory) {
  WhatIf what_if = Question(2, 1);
  what_if.plan.cluster.hosts = 1;
  what_if.layers = {{"conv", LayerKind::kConvolution, 64, 1000, 64000, 1}};
  what_if.times = {{absl::Milliseconds(1), absl::Milliseconds(2)}};
  const IterationResult free = Answer(what_if);
  EXPECT_EQ(free.iteration, free.compute);
  EXPECT_EQ(free.node_bytes, std::vector<int64_t>{0});
  // Four frames go through memory one after another: the mate's part, the sum
  // to the server, the result, and the outcome to the mate.
  what_if.memory_rate = kRate;
  const double frame = (64000 * 4 + kFrameHeaderBytes) / kRate;
  EXPECT_NEAR(SecondsOf(what_if), 0.003 + 4 * frame, 1e-8);
}

TEST(SimulatedIterationTest, UnlimitedNetworkHidesAllTransfers) {
  for (const Scheme scheme : kSchemes) {
    WhatIf what_if = Question(4, 4);
    what_if.plan.rules.forced = scheme;
    what_if.node_rate = kUnlimitedRate;
    what_if.latency = absl::ZeroDuration();
    const IterationResult result = Answer(what_if);
    EXPECT_EQ(result.network_exposed, absl::ZeroDuration());
    EXPECT_EQ(result.iteration, result.compute);
  }
}

// Backward includes the product of a worker's own factors, which takes half of
// its time. The products of the three other workers' factors come on top.
TEST(SimulatedIterationTest, ProductsOfFactorsAreComputed) {
  WhatIf what_if = Question(4, 4);
  what_if.plan.rules.forced = Scheme::kFactor;
  const absl::Duration products =
      1.5 * (what_if.times[3].backward + what_if.times[4].backward);
  const IterationResult result = Answer(what_if);
  EXPECT_NEAR(absl::ToDoubleSeconds(result.compute),
              absl::ToDoubleSeconds(result.single_node + products), 1e-8);
}

TEST(SimulatedIterationTest,
     WaitFreeBackpropagationIsNeverSlowerThanWithoutOverlap) {
  for (const int hosts : {2, 3, 8}) {
    for (const double rate : {1e8, 1e9, 1e10}) {
      for (const absl::Duration copy :
           {absl::ZeroDuration(), absl::Milliseconds(20)}) {
        WhatIf what_if = Question(hosts, hosts);
        what_if.node_rate = rate;
        what_if.host_copy = copy;
        const double wait_free = SecondsOf(what_if);
        what_if.job.overlap = Overlap::kNone;
        // In forward passes frames wait for others in both cases.
        EXPECT_LE(wait_free, 1.01 * SecondsOf(what_if))
            << hosts << " at " << rate;
      }
    }
  }
}

// Example of Zhang et al., "DeAR", in units of the time of forward: backward
// takes 2 and all-reduce 4. With wait-free backpropagation, an iteration takes
// 1 + 4. If the second half of all-reduce overlaps with the next forward, it
// takes 2 + 2: 4 instead of 5.
TEST(SimulatedIterationTest, RoundsOverlapWithForwardToo) {
  for (const Scheme scheme : {Scheme::kRing, Scheme::kServer}) {
    SCOPED_TRACE(SchemeName(scheme));
    WhatIf what_if = Question(4, 4);
    what_if.plan.rules.forced = scheme;
    what_if.iterations = 2;
    what_if.layers.assign(192, {"", LayerKind::kVector, 1, 125000, 125000, 1});
    for (size_t i = 0; i < what_if.layers.size(); ++i) {
      what_if.layers[i].name = absl::StrCat("layer", i);
    }
    // The model has 96 MB, and each host sends 1.5 times as many bytes.
    const double all_reduce = 1.5 * 4 * 192 * 125000 / kRate;
    const absl::Duration forward = absl::Seconds(all_reduce / 4);
    what_if.times.assign(192, {forward / 192, 2 * forward / 192});
    const double overlapped = SecondsOf(what_if);
    what_if.waits_in_forward = false;
    const double wait_free = SecondsOf(what_if);
    EXPECT_NEAR(wait_free, 1.25 * all_reduce, 0.02 * all_reduce);
    EXPECT_GE(wait_free / overlapped, 1.2);
  }
}

TEST(SimulatedIterationTest,
     RoundsCostNothingInForwardIfAllTransfersAreHidden) {
  for (const Scheme scheme : kSchemes) {
    WhatIf what_if = Question(4, 4);
    what_if.plan.rules.forced = scheme;
    what_if.node_rate = kUnlimitedRate;
    what_if.latency = absl::ZeroDuration();
    what_if.iterations = 3;
    const IterationResult result = Answer(what_if);
    EXPECT_NEAR(absl::ToDoubleSeconds(result.iteration),
                absl::ToDoubleSeconds(result.compute), 1e-6)
        << SchemeName(scheme);
  }
}

TEST(SimulatedIterationTest, WithoutOverlapTheTransferComesOnTop) {
  WhatIf what_if = Question(2, 2);
  what_if.plan.rules.forced = Scheme::kServer;
  what_if.job.overlap = Overlap::kNone;
  what_if.waits_in_forward = false;
  const IterationResult result = Answer(what_if);
  // The busiest host sends half of its bytes and receives the other half at the
  // same time. The last chunk's two transfers come one after the other, so 10 %
  // is added at most.
  const double bytes =
      static_cast<double>(result.node_bytes[result.busiest_node]) / 2;
  EXPECT_GE(absl::ToDoubleSeconds(result.network_exposed), bytes / kRate);
  EXPECT_LE(absl::ToDoubleSeconds(result.network_exposed), 1.1 * bytes / kRate);
}

TEST(SimulatedIterationTest,
     CopiesBetweenDeviceAndHostCountInFullIfNothingHidesThem) {
  WhatIf what_if = Question(1, 1);
  what_if.job.overlap = Overlap::kNone;
  what_if.host_copy = absl::Milliseconds(40);
  EXPECT_NEAR(SecondsOf(what_if), 0.070, 1e-6);
  // Copies now overlap with the backward of earlier layers, but for a small
  // part.
  what_if.job.overlap = Overlap::kWaitFree;
  what_if.host_copy = absl::Milliseconds(4);
  EXPECT_LT(SecondsOf(what_if), 0.031);
}

// In synchronous training, a late worker makes all workers late.
TEST(SimulatedIterationTest, AllWorkersWaitForADelayedWorker) {
  for (const bool waits_in_forward : {false, true}) {
    WhatIf what_if = Question(4, 4);
    what_if.plan.rules.forced = Scheme::kServer;
    what_if.waits_in_forward = waits_in_forward;
    what_if.node_rate = kUnlimitedRate;
    what_if.latency = absl::ZeroDuration();
    what_if.iterations = 3;
    const double without = SecondsOf(what_if);
    what_if.delays = {{1, absl::Milliseconds(30)}, {3, absl::Milliseconds(50)}};
    EXPECT_NEAR(SecondsOf(what_if), without + 0.050, 1e-6) << waits_in_forward;
  }
  WhatIf what_if = Question(4, 4);
  what_if.delays = {{4, absl::Milliseconds(1)}};
  EXPECT_THAT(std::string(SimulateIterations(what_if).status().message()),
              HasSubstr("delay of worker 4: workers are 0 to 3"));
}

TEST(SimulatedIterationTest, EqualQuestionsHaveEqualAnswers) {
  WhatIf what_if = Question(4, 3);
  what_if.jitter = absl::Milliseconds(1);
  what_if.iterations = 3;
  const IterationResult first = Answer(what_if);
  const IterationResult second = Answer(what_if);
  EXPECT_EQ(first.iteration, second.iteration);
  EXPECT_EQ(first.events, second.events);
  what_if.seed = 1;
  EXPECT_NE(Answer(what_if).iteration, first.iteration);
}

TEST(SimulatedIterationTest, ProgressGrowsAndIsAtMostOne) {
  WhatIf what_if = Question(32, 32);
  what_if.iterations = 4;
  double last = 0.0;
  const auto result = SimulateIterations(what_if, [&](double done) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1.0);
    last = done;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_GT(last, 0.3);
}

TEST(SimulatedIterationTest, ImpossibleQuestionsAreRefused) {
  const auto expect_refused = [](auto change, const char* message) {
    WhatIf what_if = Question(2, 2);
    change(what_if);
    const auto status = SimulateIterations(what_if).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect_refused([](WhatIf& w) { w.layers.clear(); }, "layers");
  expect_refused([](WhatIf& w) { w.times.pop_back(); },
                 "times has 4 layers, the model 5");
  expect_refused([](WhatIf& w) { w.plan.cluster.workers = 0; }, "workers");
  expect_refused([](WhatIf& w) { w.plan.cluster.workers = 5000; },
                 "workers is 5000, can be simulated up to 4096");
  expect_refused([](WhatIf& w) { w.plan.cluster.servers = 5000; },
                 "servers is 5000");
  expect_refused([](WhatIf& w) { w.plan.cluster.hosts = 9; }, "hosts is 9");
  expect_refused([](WhatIf& w) { w.memory_rate = 0; }, "memory_rate is 0");
  expect_refused([](WhatIf& w) { w.node_rate = 0; }, "node_rate is 0");
  expect_refused([](WhatIf& w) { w.latency = -absl::Seconds(1); },
                 "latency is -1s");
  expect_refused([](WhatIf& w) { w.jitter = absl::InfiniteDuration(); },
                 "jitter is inf");
  expect_refused([](WhatIf& w) { w.host_copy = -absl::Seconds(1); },
                 "host_copy is -1s");
  expect_refused([](WhatIf& w) { w.iterations = -1; }, "iterations is -1");
}

}  // namespace
}  // namespace nereus
