// Predicted step times. Small models have times that a reader can add up by
// hand; larger ones check that the planner's choices are no worse than their
// alternatives. Then come the times of layers that predictions start from, and
// the search for a fusion threshold.

#include "common/plan/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/plan/compute_times.h"
#include "common/plan/fusion_tuner.h"
#include "common/plan/model_table.h"
#include "common/plan/time_cost.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Four bytes per second: values and headers take whole seconds. A header takes
// 16 of them.
constexpr double kRate = 4;
constexpr double kHeader = 16;

TimeModel Model(std::vector<LayerTime> times, double rate = kRate) {
  TimeModel model;
  model.times = std::move(times);
  model.link.rate = rate;
  return model;
}

double Play(const std::vector<LayerSpec>& layers, const ClusterShape& cluster,
            const TimeModel& model, Scheme scheme,
            WireType wire = WireType::kFloat32,
            int64_t fusion_bytes = kNoFusion) {
  EXPECT_TRUE(model.Validate(layers).ok()) << model.Validate(layers);
  const auto placement =
      Placement::Make(layers, static_cast<int>(cluster.servers));
  EXPECT_TRUE(placement.ok()) << placement.status();
  return Timeline(layers, *placement, cluster, model)
      .Play(std::vector<Route>(layers.size(), {scheme, wire}), fusion_bytes);
}

Placement Place(const std::vector<LayerSpec>& layers, int shards) {
  const auto placement = Placement::Make(layers, shards);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *placement;
}

// Returns `count` layers of `elements` values.
std::vector<LayerSpec> Vectors(int count, int64_t elements) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back(VectorLayer("v" + std::to_string(i), elements));
  }
  return layers;
}

LayerTime Seconds(double forward, double backward) {
  return {absl::Seconds(forward), absl::Seconds(backward)};
}

TEST(TimelineTest, WithoutANetworkOnlyComputingTakesTime) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 10),
                                         FactorLayer("b", 4, 4, false, 2)};
  const TimeModel model = Model({Seconds(1, 2), Seconds(3, 4)}, kInfinity);
  for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
    EXPECT_EQ(Play(layers, {4, 4}, model, scheme), 10);
    EXPECT_EQ(Play(layers, {1, 1}, model, scheme), 10);
  }
}

TEST(TimelineTest, ShardReceivesAllGradientsAndSendsAllResults) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84)};
  const TimeModel model = Model({Seconds(1, 2)});
  // 84 values and a header, from each of the other nodes.
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer), 3 + 2 * 100);
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kServer), 3 + 2 * 300);
  // On a single node nothing travels.
  EXPECT_EQ(Play(layers, {1, 1}, model, Scheme::kServer), 3);
  // bf16 halves the bytes.
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer, WireType::kBfloat16),
            3 + 2 * (42 + kHeader));
}

TEST(TimelineTest, RingMovesASegmentAtATime) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 400)};
  TimeModel model = Model({Seconds(1, 2)});
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kRing),
            3 + 6 * (100 + kHeader));
  model.link.latency = absl::Seconds(2);
  model.link.message_time = absl::Seconds(1);
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kRing),
            3 + 6 * (100 + kHeader + 1 + 2));
}

TEST(TimelineTest, DirectRoundsTakeOneHop) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 400)};
  TimeModel model = Model({Seconds(1, 2)});
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kDirect),
            3 + 3 * (400 + kHeader));
  model.link.latency = absl::Seconds(2);
  model.link.message_time = absl::Seconds(1);
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kDirect),
            3 + 3 * (400 + kHeader + 1) + 2);
  EXPECT_EQ(Play(layers, {1, 1}, model, Scheme::kDirect), 3);
}

// With a long latency a small layer goes directly, and a large one on a ring.
TEST(TimelineTest, ThePlannerSendsSmallLayersDirectly) {
  for (const auto& [elements, scheme] :
       {std::pair{4, Scheme::kDirect}, std::pair{40000, Scheme::kRing}}) {
    const std::vector<LayerSpec> layers = {VectorLayer("v", elements)};
    TimeModel model = Model({Seconds(1, 2)});
    model.link.latency = absl::Seconds(500);
    const PlanChoice choice =
        ChooseByTime(layers, Place(layers, 1), {4, 1}, model, PlanRules());
    EXPECT_EQ(choice.layers[0].scheme, scheme);
  }
}

// Each worker sends both factors to each of the others, and multiplies two
// products of half a backward each.
TEST(TimelineTest, FactorsAreMultipliedOnTheDevice) {
  const std::vector<LayerSpec> layers = {FactorLayer("fc", 10, 20, false, 3)};
  const TimeModel model = Model({Seconds(1, 8)});
  EXPECT_EQ(Play(layers, {3, 3}, model, Scheme::kFactor),
            9 + 2 * (30 + 60 + 2 * kHeader) + 2 * 4);
}

// The gradient of the last layer travels while the first layer's is computed.
TEST(TimelineTest, HostSendsAsMuchAsASingleWorker) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 100),
                                         FactorLayer("b", 8, 8, false, 2)};
  const TimeModel model = Model({Seconds(1, 2), Seconds(3, 4)});
  for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
    for (const int64_t hosts : {2, 3}) {
      const double singles = Play(layers, {hosts, 2}, model, scheme);
      EXPECT_EQ(Play(layers, {4 * hosts, 2, hosts}, model, scheme), singles);
      EXPECT_EQ(Play(layers, {hosts, 2, hosts}, model, scheme), singles);
      EXPECT_LT(singles, Play(layers, {4 * hosts, 2}, model, scheme));
    }
  }
}

// The memory carries four bytes per second: a value in a second.
TEST(TimelineTest, WorkersOfAHostHandValuesOnThroughMemory) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 100)};
  TimeModel model = Model({Seconds(1, 2)});
  model.memory_rate = kRate;
  // Two gradients to the carrier, the sum to the server of the host, the result
  // back, and two copies of it for the mates.
  EXPECT_EQ(Play(layers, {3, 1, 1}, model, Scheme::kServer),
            3 + 100 * (2 + 1 + 1 + 2));
  // A worker that is alone has no mates, but its server is on its host too.
  EXPECT_EQ(Play(layers, {1, 1, 1}, model, Scheme::kServer), 3 + 100 * (1 + 1));
  // On a single host no ring is needed. 16 bits do not travel within a host.
  EXPECT_EQ(Play(layers, {3, 1, 1}, model, Scheme::kRing), 3 + 100 * (2 + 2));
  EXPECT_EQ(Play(layers, {3, 1, 1}, model, Scheme::kRing, WireType::kBfloat16),
            3 + 100 * (2 + 2));
  model.waits_in_forward = true;
  EXPECT_EQ(Play(layers, {3, 1, 1}, model, Scheme::kRing), 3 + 100 * (2 + 2));
}

// The hosts begin to send a layer's sum while the last gradients are added, and
// hand on the first means while the last ones arrive.
TEST(TimelineTest, SlowerOfMemoryAndLinkDecides) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 400)};
  TimeModel model = Model({Seconds(0, 0)});
  const double ring = Play(layers, {4, 1, 2}, model, Scheme::kRing);
  EXPECT_EQ(ring, 2 * (200 + kHeader));
  // Memory has 400 values to carry, twice: a tenth of a second each.
  model.memory_rate = 10 * kRate;
  EXPECT_EQ(Play(layers, {4, 1, 2}, model, Scheme::kRing), ring);
  model.memory_rate = kRate / 4;
  EXPECT_EQ(Play(layers, {4, 1, 2}, model, Scheme::kRing), 2 * 400 * 4);
}

TEST(TimelineTest, FactorsAndPartsOfProductsPassThroughMemory) {
  // A worker has 2 x 8 + 2 x 8 values. It sends them to the other host. The
  // host's other worker gets those of three workers.
  const std::vector<LayerSpec> few = {FactorLayer("b", 8, 8, false, 2)};
  TimeModel model = Model({Seconds(0, 0)});
  const double sent = 2 * 2 * (16 + kHeader);
  ASSERT_EQ(Play(few, {4, 2, 2}, model, Scheme::kFactor), sent);
  model.memory_rate = kRate;
  EXPECT_EQ(Play(few, {4, 2, 2}, model, Scheme::kFactor), sent + 2 * 32);
  // With 32 rows of all workers, each worker multiplies half of the product,
  // and hands it on.
  const std::vector<LayerSpec> shared = {FactorLayer("b", 8, 8, false, 8)};
  EXPECT_EQ(Play(shared, {4, 2, 2}, model, Scheme::kFactor),
            2 * 2 * (64 + kHeader) + 2 * 128 + 8 * 8);
}

// The product of layer b's factors is made behind the backward pass of layer a,
// for 10 s, before the next forward pass.
TEST(TimelineTest, DeviceDoesOneThingAtATime) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 10),
                                         FactorLayer("b", 8, 8, false, 2)};
  TimeModel model = Model({Seconds(30, 10), Seconds(1, 20)}, kInfinity);
  model.waits_in_forward = true;
  const Placement placement = Place(layers, 2);
  const std::vector<Route> routes = {{Scheme::kRing, WireType::kFloat32},
                                     {Scheme::kFactor, WireType::kFloat32}};
  const Timeline::Played played =
      Timeline(layers, placement, {2, 2}, model).PlayLayers(routes, kNoFusion);
  EXPECT_EQ(played.compute_seconds, 30 + 10 + 1 + 20 + 10);
  EXPECT_EQ(played.seconds, played.compute_seconds);
}

// Layer b's factors arrive last, and its forward pass comes first. It waits
// neither for the sum of layer r nor for its mean, which pass through memory
// for 500 s each.
TEST(TimelineTest, ProductOfLateFactorsDoesNotWaitForLaterLayers) {
  const std::vector<LayerSpec> layers = {FactorLayer("b", 8, 8, false, 8),
                                         VectorLayer("r", 5000)};
  TimeModel model = Model({Seconds(1000, 1), Seconds(0, 1)}, kInfinity);
  model.memory_rate = 40;
  model.waits_in_forward = true;
  const ClusterShape cluster = {4, 1, 2};
  const Placement placement = Place(layers, 1);
  const std::vector<Route> routes = {{Scheme::kFactor, WireType::kFloat32},
                                     {Scheme::kRing, WireType::kFloat32}};
  const double seconds =
      Timeline(layers, placement, cluster, model).Play(routes, kNoFusion);
  // The factors of both hosts take 25.6 s each, the parts of the product 6.4 s.
  EXPECT_NEAR(seconds, 1000 + 2 * 25.6 + 6.4, 4);
}

// No time of a transfer is a finite number.
TEST(TimelineTest, AnIterationOverALinkThatCarriesNothingNeverEnds) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 100),
                                         VectorLayer("b", 100)};
  for (const bool waits_in_forward : {false, true}) {
    TimeModel model = Model({Seconds(1, 1), Seconds(1, 1)}, 1e-307);
    model.waits_in_forward = waits_in_forward;
    for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
      EXPECT_EQ(Play(layers, {4, 4}, model, scheme), kInfinity);
    }
  }
}

TEST(TimelineTest, MemoryWithoutASpeedIsRefused) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 100)};
  TimeModel model = Model({Seconds(0, 0)});
  for (const double rate : {0.0, 1e-320, -1.0, std::nan("")}) {
    model.memory_rate = rate;
    EXPECT_THAT(std::string(model.Validate(layers).message()),
                HasSubstr("memory_rate is "));
  }
}

TEST(TimelineTest, ServersOfAHostShareItsLink) {
  // Each host has one of two chunks. Its link carries the other host's chunk in
  // and the own one out, twice.
  const std::vector<LayerSpec> layers = {VectorLayer("a", 100),
                                         VectorLayer("b", 100)};
  const TimeModel model = Model({Seconds(0, 0), Seconds(0, 0)});
  const double apart = Play(layers, {2, 2}, model, Scheme::kServer);
  EXPECT_EQ(Play(layers, {4, 2, 2}, model, Scheme::kServer), apart);
  // Two servers on each host, with two chunks each, take twice as long, and a
  // chunk's time more: the last chunk leaves when its host has sent the results
  // of the others.
  const std::vector<LayerSpec> four = {
      VectorLayer("a", 100), VectorLayer("b", 100), VectorLayer("c", 100),
      VectorLayer("d", 100)};
  const TimeModel longer =
      Model({Seconds(0, 0), Seconds(0, 0), Seconds(0, 0), Seconds(0, 0)});
  EXPECT_EQ(Play(four, {4, 4, 2}, longer, Scheme::kServer), 2.5 * apart);
}

TEST(TimelineTest, FactorsOfAllLocalWorkersLeaveByTheHostsLink) {
  // A worker sends 2 x 8 + 2 x 8 values to the other host.
  const std::vector<LayerSpec> layers = {FactorLayer("b", 8, 8, false, 2)};
  const TimeModel model = Model({Seconds(0, 0)});
  EXPECT_EQ(Play(layers, {2, 1, 2}, model, Scheme::kFactor), 32 + 2 * kHeader);
  EXPECT_EQ(Play(layers, {4, 1, 2}, model, Scheme::kFactor),
            2 * (32 + 2 * kHeader));
  // Hosts of two workers and one: the larger one sends twice.
  EXPECT_EQ(Play(layers, {3, 1, 2}, model, Scheme::kFactor),
            2 * (32 + 2 * kHeader));
}

TEST(TimelineTest, SingleHostNeedsNoLink) {
  const std::vector<LayerSpec> layers = {FactorLayer("b", 8, 8, false, 2)};
  TimeModel model = Model({Seconds(1, 2)});
  for (const bool waits_in_forward : {false, true}) {
    model.waits_in_forward = waits_in_forward;
    for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
      EXPECT_EQ(Play(layers, {4, 2, 1}, model, scheme), 3);
    }
    // Three products of the peers' factors take 3 s: 8 rows are too few to
    // share.
    EXPECT_EQ(Play(layers, {4, 2, 1}, model, Scheme::kFactor), 6);
  }
}

TEST(TimelineTest, WorkersOfAHostShareTheProduct) {
  // 4 workers with 16 rows each. Alone, a worker multiplies those of 3 peers;
  // two workers of a host multiply half of all 4.
  const std::vector<LayerSpec> layers = {FactorLayer("b", 8, 8, false, 16)};
  const TimeModel model = Model({Seconds(1, 2)}, kInfinity);
  EXPECT_EQ(Play(layers, {4, 1, 4}, model, Scheme::kFactor), 6);
  EXPECT_EQ(Play(layers, {4, 1, 2}, model, Scheme::kFactor), 5);
  EXPECT_EQ(Play(layers, {4, 1, 1}, model, Scheme::kFactor), 4);
  // Hosts of two workers and one, which multiplies the rows of 2 peers alone.
  EXPECT_EQ(Play(layers, {3, 1, 2}, model, Scheme::kFactor), 5);
}

TEST(TimelineTest, SendingOverlapsWithBackward) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84),
                                         VectorLayer("b", 84)};
  const TimeModel model = Model({Seconds(0, 1000), Seconds(0, 1000)});
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kRing),
            2000 + 2 * (42 + kHeader));
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer), 2000 + 200);
}

TEST(TimelineTest, WithoutOverlapNothingLeavesBeforeTheEndOfBackward) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84),
                                         VectorLayer("b", 84)};
  TimeModel model = Model({Seconds(0, 1000), Seconds(0, 1000)});
  model.sequential = true;
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kRing),
            2000 + 2 * 2 * (42 + kHeader));
}

// The figures of DeAR: forward 1, backward 2, all-reduce 4.
TEST(TimelineTest, RoundsOverlapWithForward) {
  constexpr double kStep = 100;
  const std::vector<LayerSpec> layers = Vectors(100, 10000);
  TimeModel model =
      Model(std::vector<LayerTime>(100, Seconds(kStep, 2 * kStep)));
  // Each of the two phases of an all-reduce takes 2: half of the layer, for two
  // workers.
  model.link.rate = kRate * (10000 / 2 + kHeader) / (2 * kStep);
  EXPECT_NEAR(Play(layers, {2, 2}, model, Scheme::kRing) / (100 * kStep), 5,
              0.1);
  model.waits_in_forward = true;
  EXPECT_NEAR(Play(layers, {2, 2}, model, Scheme::kRing) / (100 * kStep), 4,
              0.1);
}

// A message takes 1000 s; a layer's values and header take 20 s.
TEST(TimelineTest, FusedLayersShareMessages) {
  const std::vector<LayerSpec> layers = Vectors(10, 4);
  TimeModel model = Model(std::vector<LayerTime>(10, Seconds(1, 10)));
  model.link.message_time = absl::Seconds(1000);
  constexpr double kComputed = 110;
  const auto play = [&](Scheme scheme, int64_t fusion_bytes) {
    return Play(layers, {2, 1}, model, scheme, WireType::kFloat32,
                fusion_bytes);
  };
  // Only worker 1 pushes to shard 0 through the network. The first results are
  // those of the most urgent layer, whose gradient comes last.
  EXPECT_EQ(play(Scheme::kServer, kNoFusion), kComputed + 11 * 1020);
  // All layers are ready at once. The first leaves alone; the others find it
  // under way, and leave together. Results do the same.
  EXPECT_LE(play(Scheme::kServer, 1 << 20), kComputed + 2 * (10 * 20 + 2010));
  EXPECT_GE(play(Scheme::kServer, 1 << 20), kComputed + 2 * (10 * 20 + 1000));
  EXPECT_EQ(play(Scheme::kRing, kNoFusion), 20 + 10 * 2 * 1018);
  // Each hop of the last layer adds a message.
  EXPECT_LE(play(Scheme::kRing, 1 << 20), kComputed + 10 * 2 * 18 + 4 * 1010);
  EXPECT_GE(play(Scheme::kRing, 1 << 20), kComputed + 10 * 2 * 18 + 2 * 1000);
}

TEST(TimelineTest, DeferredLayersLeaveAtTheThreshold) {
  const std::vector<LayerSpec> layers = {
      VectorLayer("a", 84), VectorLayer("b", 84), VectorLayer("c", 84)};
  const TimeModel model =
      Model({Seconds(0, 1000), Seconds(0, 1000), Seconds(0, 1000)});
  const Placement placement = Place(layers, 2);
  const ClusterShape cluster = {2, 2};
  const Timeline timeline(layers, placement, cluster, model);
  const std::vector<Route> routes(3, {Scheme::kRing, WireType::kFloat32});
  const double sync = 2 * (42 + kHeader);
  const auto played = [&](int64_t fusion_bytes) {
    return timeline.PlayLayers(routes, fusion_bytes).sync_seconds;
  };
  EXPECT_THAT(played(0), ElementsAre(sync, sync, sync));
  EXPECT_THAT(played(84 * 4), ElementsAre(sync, sync, sync));
  // c waits for b, and leaves behind it; a leaves alone.
  EXPECT_THAT(played(84 * 4 + 1), ElementsAre(sync, sync, 1000 + 2 * sync));
  // Both wait for a, the last layer, and leave behind it.
  EXPECT_THAT(played(84 * 4 * 100),
              ElementsAre(sync, 1000 + 2 * sync, 2000 + 3 * sync));
}

TEST(TimeCostTest, BestFusionIsNoWorseThanOthers) {
  const std::vector<LayerSpec> layers = Vectors(64, 1024);
  const ClusterShape cluster = {4, 4};
  const Placement placement = Place(layers, 4);
  const std::vector<Route> routes(64, {Scheme::kRing, WireType::kFloat32});
  const auto best = [&](const TimeModel& model) {
    const Timeline timeline(layers, placement, cluster, model);
    const int64_t bytes = BestFusion(timeline, routes);
    for (int64_t other = FusionTuner::kBytesMin;
         other <= FusionTuner::kBytesMax; other *= 2) {
      EXPECT_LE(timeline.Play(routes, bytes),
                timeline.Play(routes, other) * 1.002)
          << bytes << ", " << other;
    }
    return bytes;
  };
  TimeModel model =
      Model(std::vector<LayerTime>(64, Seconds(0.001, 0.01)), /*rate=*/1e6);
  // Messages cost nothing, so the smallest threshold is best.
  EXPECT_LE(best(model), 4096);
  model.link.message_time = absl::Milliseconds(1);
  EXPECT_GE(best(model), 4096);
  // Nothing takes time, so each threshold is equally good.
  model.link.message_time = absl::ZeroDuration();
  model.link.rate = kInfinity;
  EXPECT_EQ(best(model), FusionTuner::kBytesFirst);
}

// The search is short here: a hundred timelines at most.
TEST(TimeCostTest, FusionIsChosenByAShortSearch) {
  const std::vector<LayerSpec> layers = Vectors(64, 1024);
  constexpr int kNodes = 16384;
  const ClusterShape cluster = {kNodes, kNodes};
  const Placement placement = Place(layers, kNodes);
  const TimeModel model =
      Model(std::vector<LayerTime>(64, Seconds(0.001, 0.01)), 1e9);
  PlanRules rules;
  rules.choose_fusion = true;
  const PlanChoice choice =
      ChooseByTime(layers, placement, cluster, model, rules);
  std::vector<Route> routes;
  for (const SchemeChoice& layer : choice.layers) {
    routes.push_back({layer.scheme, layer.wire});
  }
  const Timeline timeline(layers, placement, cluster, model);
  const int64_t best = BestFusion(timeline, routes);
  EXPECT_NE(best, FusionTuner::kBytesFirst) << "there is nothing to choose";
  EXPECT_EQ(choice.fusion_bytes, best);
}

// The plan uses fp32, except for layers that would delay the step.
TEST(TimeCostTest, SixteenBitsAreForLayersThatDelayTheStep) {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;
  for (int i = 0; i < 8; ++i) {
    layers.push_back(VectorLayer("v" + std::to_string(i), 100000));
    times.push_back(Seconds(0.001, 0.002));
  }
  layers[7] = VectorLayer("tiny", 10);
  const ClusterShape cluster = {4, 4};
  const Placement placement = Place(layers, 4);
  PlanRules rules;
  rules.choose_wire = true;
  const auto wires = [&](double rate) {
    const TimeModel model = Model(times, rate);
    const Timeline timeline(layers, placement, cluster, model);
    std::vector<Route> routes;
    int narrow = 0;
    for (const SchemeChoice& choice :
         ChooseByTime(layers, placement, cluster, model, rules).layers) {
      routes.push_back({choice.scheme, choice.wire});
      narrow += choice.wire == WireType::kBfloat16;
    }
    const double seconds = timeline.Play(routes, kNoFusion);
    for (size_t i = 0; i < layers.size(); ++i) {
      std::vector<Route> other = routes;
      if (routes[i].wire == WireType::kBfloat16) {
        other[i].wire = WireType::kFloat32;
        EXPECT_GT(timeline.Play(other, kNoFusion), seconds) << i;
      } else {
        other[i].wire = WireType::kBfloat16;
        EXPECT_GE(timeline.Play(other, kNoFusion), seconds * 0.99) << i;
      }
    }
    return narrow;
  };
  EXPECT_EQ(wires(kInfinity), 0);
  // 16 bits make no difference for the layer of ten values.
  EXPECT_EQ(wires(1e6), 7);
  // Sending that continues after the end of backward delays the first layers.
  const int some = wires(2e8);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 7);
}

// Even with many layers and nodes, no layer has 16 bits without need, and no
// step waits for a layer that 16 bits would speed up.
TEST(TimeCostTest, WireTypesAreChosenByAShortSearch) {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;
  for (int i = 0; i < 64; ++i) {
    // Many sizes: one for each limit that the search tries.
    layers.push_back(
        FactorLayer("fc" + std::to_string(i), 2048, 3072 + 16 * i, false, 64));
    layers.push_back(VectorLayer("n" + std::to_string(i), 1000 + i));
    times.push_back(Seconds(0.01, 0.02));
    times.push_back(Seconds(0.0001, 0.0002));
  }
  PlanRules rules;
  rules.choose_wire = true;
  for (const int nodes : {8, 256, 2048}) {
    const ClusterShape cluster = {nodes, nodes};
    const Placement placement = Place(layers, nodes);
    const auto narrow = [&](double rate, bool large) {
      const TimeModel model = Model(times, rate);
      const PlanChoice choice =
          ChooseByTime(layers, placement, cluster, model, rules);
      int count = 0;
      for (size_t i = large ? 0 : 1; i < layers.size(); i += 2) {
        count += choice.layers[i].wire == WireType::kBfloat16;
      }
      return count;
    };
    EXPECT_GT(narrow(125e6, /*large=*/true), 32) << nodes;
    EXPECT_LT(narrow(125e6, /*large=*/false), 32) << nodes;
    EXPECT_EQ(narrow(1e13, true) + narrow(1e13, false), 0) << nodes;
  }
}

// Another route for any single layer makes the step no shorter, and neither
// does one scheme for all layers.
TEST(TimeCostTest, NoSingleChangeMakesThePlanShorter) {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;
  for (int i = 1; i <= 6; ++i) {
    layers.push_back(
        FactorLayer("fc" + std::to_string(i), 100 * i, 70, false, 3 * i * i));
    layers.push_back(VectorLayer("v" + std::to_string(i), 3000 * i));
    times.push_back(Seconds(10, 900.0 * i));
    times.push_back(Seconds(5, 10));
  }
  for (const double rate : {20.0, 100.0, 400.0}) {
    const TimeModel model = Model(times, rate);
    const ClusterShape cluster = {4, 3};
    const Placement placement = Place(layers, 3);
    const Timeline timeline(layers, placement, cluster, model);
    std::vector<Route> routes;
    for (const SchemeChoice& choice :
         ChooseByTime(layers, placement, cluster, model, PlanRules()).layers) {
      routes.push_back({choice.scheme, WireType::kFloat32});
    }
    const double seconds = timeline.Play(routes, kNoFusion);
    for (const Scheme scheme :
         {Scheme::kServer, Scheme::kFactor, Scheme::kRing}) {
      std::vector<Route> uniform = routes;
      for (size_t i = 0; i < layers.size(); ++i) {
        const bool supported = SupportsScheme(layers[i], scheme);
        uniform[i].scheme = supported ? scheme : Scheme::kServer;
        if (!supported) continue;
        std::vector<Route> changed = routes;
        changed[i].scheme = scheme;
        EXPECT_GE(timeline.Play(changed, kNoFusion), 0.999 * seconds)
            << "layer " << i;
      }
      EXPECT_GE(timeline.Play(uniform, kNoFusion), 0.999 * seconds);
    }
  }
}

TEST(TimelineTest, WrongModelIsRefusedWithTheReason) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84)};
  const auto refusal = [&](auto spoil) {
    TimeModel model = Model({Seconds(1, 2)});
    spoil(model);
    return std::string(model.Validate(layers).message());
  };
  EXPECT_THAT(refusal([](TimeModel& model) { model.times.clear(); }),
              HasSubstr("times has 0 layers, the model 1"));
  EXPECT_THAT(refusal([](TimeModel& model) { model.times = {Seconds(-1, 2)}; }),
              HasSubstr("the forward pass of layer 0 computes for -1s, must be "
                        "from 0 to 24h"));
  EXPECT_THAT(
      refusal([](TimeModel& model) { model.times = {Seconds(1, 86401)}; }),
      HasSubstr("the backward pass of layer 0 computes for 24h1s"));
  EXPECT_THAT(refusal([](TimeModel& model) { model.link.rate = 0; }),
              HasSubstr("rate is 0"));
  EXPECT_THAT(refusal([](TimeModel& model) { model.share = 0; }),
              HasSubstr("share is 0"));
  EXPECT_THAT(
      refusal([](TimeModel& model) { model.link.latency = -absl::Seconds(1); }),
      HasSubstr("latency is -1s"));
}

std::vector<LayerSpec> Layers() {
  return {{"conv", LayerKind::kConvolution, 64, 27, 1792, 100},
          {"norm", LayerKind::kVector, 1, 64, 128, 1},
          {"fc", LayerKind::kFullyConnected, 10, 64, 650, 20, true}};
}

TEST(ComputeTimesTest, TimesAreProportionalToOperations) {
  const auto times = SplitCompute(Layers(), absl::Seconds(3), 2.0 / 3);
  ASSERT_EQ(times.size(), 3u);
  // The times are as 64 * 27 * 100 to 10 * 64 * 20.
  const double conv = 172800.0 / (172800 + 12800);
  EXPECT_NEAR(absl::ToDoubleSeconds(times[0].forward), conv, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(times[0].backward), 2 * conv, 1e-9);
  EXPECT_EQ(times[1], LayerTime());
  EXPECT_NEAR(absl::ToDoubleSeconds(times[2].forward), 1 - conv, 1e-9);
  EXPECT_NEAR(absl::ToDoubleSeconds(TotalTime(times)), 3.0, 1e-8);
}

TEST(ComputeTimesTest, TimesWithoutProductsAreProportionalToParameters) {
  const auto times = SplitCompute(
      std::vector<LayerSpec>{{"a", LayerKind::kVector, 1, 10, 10, 1},
                             {"b", LayerKind::kEmbedding, 3, 10, 30, 1}},
      absl::Seconds(4), 0.5);
  EXPECT_EQ(times[0], (LayerTime{absl::Seconds(0.5), absl::Seconds(0.5)}));
  EXPECT_EQ(times[1], (LayerTime{absl::Seconds(1.5), absl::Seconds(1.5)}));
}

std::string Entry(const std::string& name, const std::string& forward,
                  const std::string& backward) {
  return absl::StrCat("{\"name\": \"", name,
                      "\", \"forward_seconds\": ", forward,
                      ", \"backward_seconds\": ", backward, "}");
}

std::string Trace(const std::string& entries) {
  return absl::StrCat("{\"layers\": [", entries, "], \"gpu\": \"any\"}");
}

TEST(ComputeTraceTest, TraceGivesLayersTheirTimesInAnyOrder) {
  const auto times = ParseComputeTrace(
      Trace(absl::StrCat(Entry("fc", "0.5", "1"), ",", Entry("norm", "0", "0"),
                         ",", Entry("conv", "1e-3", "0.002"))),
      Layers());
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(*times, (std::vector<LayerTime>{
                        {absl::Milliseconds(1), absl::Milliseconds(2)},
                        {},
                        {absl::Seconds(0.5), absl::Seconds(1)}}));
}

struct BadTrace {
  const char* name;
  std::string text;
  const char* message;
};

class BadTraceTest : public testing::TestWithParam<BadTrace> {};

TEST_P(BadTraceTest, BadTraceIsRefusedWithPlaceAndValue) {
  EXPECT_THAT(ParseComputeTrace(GetParam().text, Layers()).status(),
              IsInvalidArgument(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, BadTraceTest,
    testing::ValuesIn(std::vector<BadTrace>{
        {"Empty", "", "is not JSON"},
        {"NotJson", "{\"layers\": [", "is not JSON"},
        {"NoLayers", "{}", "layers is missing"},
        {"LayersAreNoArray", "{\"layers\": 3}",
         "layers is number 3, not a list"},
        {"NoObject", "[]", "is not a JSON object"},
        {"EntryIsNoObject", Trace("7"), "layers[0]: is not a JSON object"},
        {"NameIsNoString", Trace("{\"name\": 1}"),
         "layers[0]: name is number 1, not a string"},
        {"UnknownLayer", Trace(Entry("fc7", "1", "1")),
         "layers[0] (\"fc7\") is not a layer of the model"},
        {"Twice", Trace(Entry("fc", "1", "1") + "," + Entry("fc", "1", "1")),
         "layers[1] (\"fc\") repeats the layer of an earlier entry"},
        {"NoBackward", Trace("{\"name\": \"fc\", \"forward_seconds\": 1}"),
         "layers[0] (\"fc\"): backward_seconds is missing"},
        {"Text", Trace(Entry("fc", "\"1\"", "1")),
         "forward_seconds is string, not a number"},
        {"Negative", Trace(Entry("fc", "-1", "1")), "forward_seconds is -1"},
        {"TooLong", Trace(Entry("fc", "1", "1e9")),
         "backward_seconds is 1e+09, must be from 0 to 86400"},
        {"Missing", Trace(Entry("norm", "1", "1")),
         "layers of the model are missing: conv, fc"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(ComputeTraceTest, ErrorNamesOnlyAFewOfManyMissingLayers) {
  const auto layers = LoadModel("vgg19", 1);
  const auto status = ParseComputeTrace("{\"layers\": []}", *layers).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("conv1_1, conv1_2, conv2_1, conv2_2, conv3_1 and 14 "
                        "more"));
}

using Curve = std::function<double(double x)>;  // x is log2 of the threshold.

double At(const Curve& curve, int64_t bytes) {
  return curve(std::log2(static_cast<double>(bytes)));
}

double LeastOf(const Curve& curve) {
  double least = curve(10);
  for (double x = 10; x <= 26; x += 0.125) least = std::min(least, curve(x));
  return least;
}

// Runs the tuner to its end. Each measurement has a relative error of at most
// `noise`.
FusionTuner Tune(const Curve& curve, double noise, uint64_t seed,
                 int64_t first = FusionTuner::kBytesFirst) {
  Random random(seed);
  FusionTuner tuner(first);
  while (!tuner.done()) {
    EXPECT_GE(tuner.next(), FusionTuner::kBytesMin);
    EXPECT_LE(tuner.next(), FusionTuner::kBytesMax);
    const double error = 1 + noise * (2 * random.Uniform() - 1);
    tuner.Observe(At(curve, tuner.next()) * error);
  }
  EXPECT_LE(tuner.trials(), FusionTuner::kTrialsMax);
  return tuner;
}

// Returns the shape of real step times: small thresholds cost many messages,
// large thresholds delay the messages.
Curve Iteration(double per_message, double overlap) {
  return [=](double x) {
    const double bytes = std::exp2(x);
    return 0.05 + per_message * 4e6 / bytes + overlap * bytes / 4e6;
  };
}

TEST(FusionTunerTest, ThresholdIsWithinFivePercentOfTheBest) {
  for (const double per_message : {1e-6, 1e-5, 1e-4, 1e-3}) {
    for (const double overlap : {1e-3, 1e-2, 1e-1}) {
      const Curve curve = Iteration(per_message, overlap);
      const FusionTuner tuner = Tune(curve, 0, 1);
      EXPECT_LE(At(curve, tuner.best()), 1.05 * LeastOf(curve))
          << per_message << ", " << overlap << ": " << tuner.best() << " after "
          << tuner.trials() << " trials";
    }
  }
}

TEST(FusionTunerTest, TunerToleratesNoise) {
  const Curve curve = Iteration(1e-4, 1e-2);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const FusionTuner tuner = Tune(curve, 0.03, seed);
    EXPECT_LE(At(curve, tuner.best()), 1.08 * LeastOf(curve))
        << "seed " << seed << ": " << tuner.best();
  }
}

TEST(FusionTunerTest, TunerFindsOptimaAtTheBounds) {
  const Curve rising = [](double x) { return 0.01 * x; };
  const Curve falling = [](double x) { return 0.01 * (40 - x); };
  EXPECT_LE(Tune(rising, 0, 1).best(), 2 * FusionTuner::kBytesMin);
  EXPECT_GE(Tune(falling, 0, 1).best(), FusionTuner::kBytesMax / 2);
}

TEST(FusionTunerTest, FlatCurveEndsTheSearchSoon) {
  const FusionTuner tuner = Tune([](double) { return 0.2; }, 0.001, 1);
  EXPECT_EQ(tuner.trials(), 3);
}

// The first trial is the given threshold, clamped to the bounds.
TEST(FusionTunerTest, FirstTrialIsTheGivenThreshold) {
  for (const int64_t first : {int64_t{0}, int64_t{1} << 10, int64_t{5000},
                              int64_t{1} << 24, int64_t{1} << 30}) {
    const FusionTuner fresh(first);
    EXPECT_EQ(fresh.next(), std::clamp(first, FusionTuner::kBytesMin,
                                       FusionTuner::kBytesMax));
    EXPECT_EQ(fresh.best(), fresh.next());
    const Curve curve = Iteration(1e-4, 1e-2);
    const FusionTuner tuner = Tune(curve, 0, 1, first);
    EXPECT_LE(At(curve, tuner.best()), 1.05 * LeastOf(curve)) << first;
  }
}

// A good initial threshold saves trials.
TEST(FusionTunerTest, GoodStartTakesNoMoreTrials) {
  const Curve curve = Iteration(1e-4, 1e-2);
  int64_t best = FusionTuner::kBytesMin;
  for (int64_t bytes = best; bytes <= FusionTuner::kBytesMax; bytes *= 2) {
    if (At(curve, bytes) < At(curve, best)) best = bytes;
  }
  EXPECT_LE(Tune(curve, 0, 1, best).trials(),
            Tune(curve, 0, 1, FusionTuner::kBytesMin).trials());
}

}  // namespace
}  // namespace nereus
