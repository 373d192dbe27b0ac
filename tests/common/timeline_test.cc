#include "common/plan/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/plan/time_cost.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Four bytes a second: values and headers are whole seconds. A header is 16 of
// them.
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
            WireType wire = WireType::kFloat32) {
  EXPECT_TRUE(model.Validate(layers).ok()) << model.Validate(layers);
  const auto placement =
      Placement::Make(layers, static_cast<int>(cluster.servers));
  EXPECT_TRUE(placement.ok()) << placement.status();
  return Timeline(layers, *placement, cluster, model)
      .Play(std::vector<Route>(layers.size(), {scheme, wire}));
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

TEST(TimelineTest, AnOwnerReceivesAllGradientsAndSendsAllResults) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84)};
  const TimeModel model = Model({Seconds(1, 2)});
  // 84 values and a header, from each of the others.
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer), 3 + 2 * 100);
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kServer), 3 + 2 * 300);
  // A node that has no worker: all are others.
  EXPECT_EQ(Play(layers, {1, 1}, model, Scheme::kServer), 3);
  // Half of the bytes.
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer, WireType::kBfloat16),
            3 + 2 * (42 + kHeader));
}

TEST(TimelineTest, ARingMovesASegmentAtATime) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 400)};
  TimeModel model = Model({Seconds(1, 2)});
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kRing),
            3 + 6 * (100 + kHeader));
  model.link.latency = absl::Seconds(2);
  model.link.message_time = absl::Seconds(1);
  EXPECT_EQ(Play(layers, {4, 4}, model, Scheme::kRing),
            3 + 6 * (100 + kHeader + 1 + 2));
}

// Both factors to each of the others, and two products of half a backward.
TEST(TimelineTest, FactorsAreMultipliedOnTheDevice) {
  const std::vector<LayerSpec> layers = {FactorLayer("fc", 10, 20, false, 3)};
  const TimeModel model = Model({Seconds(1, 8)});
  EXPECT_EQ(Play(layers, {3, 3}, model, Scheme::kFactor),
            9 + 2 * (30 + 60 + 2 * kHeader) + 2 * 4);
}

// The last layer's gradient travels while the first one's is computed.
TEST(TimelineTest, WhatTravelsOverlapsWithBackward) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84),
                                         VectorLayer("b", 84)};
  const TimeModel model = Model({Seconds(0, 1000), Seconds(0, 1000)});
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kRing),
            2000 + 2 * (42 + kHeader));
  EXPECT_EQ(Play(layers, {2, 2}, model, Scheme::kServer), 2000 + 200);
}

// DeAR's figures: forward 1, backward 2, all-reduce 4.
TEST(TimelineTest, DecoupledRoundsAreGatheredDuringForward) {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;
  for (int i = 0; i < 100; ++i) {
    layers.push_back(VectorLayer("v" + std::to_string(i), 10000));
    times.push_back(Seconds(100, 200));
  }
  TimeModel model = Model(times);
  const double step = 100;
  const double reduce = 10000 + 2 * kHeader;  // Of a layer, by two workers.
  model.link.rate = kRate * reduce / (4 * step / 2) / 2;
  const double coupled = Play(layers, {2, 2}, model, Scheme::kRing);
  model.decoupled = true;
  const double decoupled = Play(layers, {2, 2}, model, Scheme::kRing);
  EXPECT_NEAR(coupled / (100 * step), 5, 0.1);
  EXPECT_NEAR(decoupled / (100 * step), 4, 0.1);
}

// Wherever one layer went another way, the iteration would be no shorter; nor
// with one scheme for all.
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
    const auto placement = Placement::Make(layers, 3);
    ASSERT_TRUE(placement.ok());
    const Timeline timeline(layers, *placement, cluster, model);
    std::vector<Route> routes;
    for (const SchemeChoice& choice :
         ChooseByTime(layers, *placement, cluster, model, WireType::kFloat32,
                      /*may_use_factors=*/true)) {
      routes.push_back({choice.scheme, WireType::kFloat32});
    }
    const double seconds = timeline.Play(routes);
    for (const Scheme scheme :
         {Scheme::kServer, Scheme::kFactor, Scheme::kRing}) {
      std::vector<Route> uniform = routes;
      for (size_t i = 0; i < layers.size(); ++i) {
        const bool supported = SupportsScheme(layers[i], scheme);
        uniform[i].scheme = supported ? scheme : Scheme::kServer;
        if (!supported) continue;
        std::vector<Route> changed = routes;
        changed[i].scheme = scheme;
        EXPECT_GE(timeline.Play(changed), 0.999 * seconds) << "layer " << i;
      }
      EXPECT_GE(timeline.Play(uniform), 0.999 * seconds);
    }
  }
}

TEST(TimelineTest, SaysWhatIsWrongWithAModel) {
  const std::vector<LayerSpec> layers = {VectorLayer("a", 84)};
  const auto refusal = [&](auto spoil) {
    TimeModel model = Model({Seconds(1, 2)});
    spoil(model);
    return std::string(model.Validate(layers).message());
  };
  EXPECT_THAT(refusal([](TimeModel& model) { model.times.clear(); }),
              HasSubstr("times has 0 layers, the model 1"));
  EXPECT_THAT(refusal([](TimeModel& model) { model.link.rate = 0; }),
              HasSubstr("rate is 0"));
  EXPECT_THAT(refusal([](TimeModel& model) { model.share = 0; }),
              HasSubstr("share is 0"));
  EXPECT_THAT(
      refusal([](TimeModel& model) { model.link.latency = -absl::Seconds(1); }),
      HasSubstr("latency is -1s"));
}

}  // namespace
}  // namespace nereus
