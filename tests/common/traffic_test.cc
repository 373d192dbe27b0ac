// Predicted bytes of each node, compared with the cost model and with the
// paper's example. InitialTrafficTest predicts the bytes of a job's start.

#include "common/plan/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/model_table.h"
#include "common/plan/scheme.h"

namespace nereus {
namespace {

using testing::Each;
using testing::ElementsAre;

// Largest number of elements per frame.
constexpr int64_t kFrameMax = 64 << 10;

LayerSpec Fc(int64_t m, int64_t n, int64_t k) {
  return {"fc", LayerKind::kFullyConnected, m, n, m * n, k, true};
}

Placement Place(const std::vector<LayerSpec>& layers, int shards) {
  absl::StatusOr<Placement> placement = Placement::Make(layers, shards);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return *std::move(placement);
}

// Returns each node's bytes for one layer, without headers.
std::vector<int64_t> PayloadOf(const LayerSpec& layer, Scheme scheme,
                               const ClusterShape& cluster) {
  return PredictLinkBytes({layer}, {Route{scheme}},
                          Place({layer}, static_cast<int>(cluster.servers)),
                          HostMap::Of(cluster),
                          /*frame_header_bytes=*/0, kFrameMax);
}

TEST(TrafficTest, EvenPlacementMatchesTheCostModel) {
  // 32 chunks spread evenly over 2, 4 or 8 shards.
  const LayerSpec layer = Fc(4096, 4096, 32);
  const int64_t elements = 4096 * 4096;
  for (const int64_t workers : {1, 2, 3, 8, 12}) {
    for (const int64_t servers : {1, 2, 4, 8}) {
      const ClusterShape cluster = {workers, servers};
      const std::vector<int64_t> nodes =
          PayloadOf(layer, Scheme::kServer, cluster);
      ASSERT_EQ(std::ssize(nodes), std::max(workers, servers));
      for (int64_t i = 0; i < std::ssize(nodes); ++i) {
        const bool both = i < workers && i < servers;
        const int64_t expected =
            both ? ServerSchemeBothElements(elements, cluster)
            // Table 1 of Poseidon: each node has only a worker or only a
            // server.
            : i < workers ? 2 * elements
                          : 2 * elements * workers / servers;
        EXPECT_EQ(nodes[i], 4 * expected)
            << "node " << i << " of " << workers << " workers and " << servers
            << " servers";
      }
    }
  }
}

TEST(TrafficTest, TrafficMatchesThePapersExample) {
  const LayerSpec layer = Fc(4096, 4096, 32);
  EXPECT_THAT(PayloadOf(layer, Scheme::kServer, {8, 8}), Each(4 * 58720256));
  EXPECT_THAT(PayloadOf(layer, Scheme::kFactor, {8, 8}), Each(4 * 3670016));
}

TEST(TrafficTest, FactorTrafficMatchesTheCostModel) {
  const LayerSpec layer = Fc(30, 20, 7);
  const ClusterShape cluster = {3, 5};
  const int64_t bytes = 4 * FactorSchemeElements(layer, cluster);
  EXPECT_THAT(PayloadOf(layer, Scheme::kFactor, cluster),
              ElementsAre(bytes, bytes, bytes, 0, 0));
}

TEST(TrafficTest, RingTrafficMatchesTheCostModel) {
  // 600 elements divide into three segments of 208, 208 and 184.
  const LayerSpec layer = Fc(30, 20, 7);
  EXPECT_THAT(PayloadOf(layer, Scheme::kRing, {3, 4}),
              ElementsAre(4 * (2400 - 208 - 2 * 208 - 184),
                          4 * (2400 - 208 - 2 * 184 - 208),
                          4 * (2400 - 184 - 2 * 208 - 208), 0));
  const LayerSpec even = Fc(64, 64, 7);
  for (const int64_t workers : {1, 2, 4, 8}) {
    EXPECT_THAT(PayloadOf(even, Scheme::kRing, {workers, 1}),
                Each(4 * RingSchemeElements(64 * 64, {workers, 1})));
  }
}

TEST(TrafficTest, UnevenPlacementIsCountedNodeByNode) {
  // Chunks of 524288 and 712 elements, on shards 0 and 1; three workers.
  const LayerSpec layer = {"conv", LayerKind::kConvolution, 1, 525000, 525000,
                           1};
  const int64_t large = 2 * 4 * 524288;
  const int64_t small = 2 * 4 * 712;
  EXPECT_THAT(PayloadOf(layer, Scheme::kServer, {3, 2}),
              ElementsAre(small + 2 * large, large + 2 * small, large + small));
}

TEST(TrafficTest, EachFrameHasAHeader) {
  // 262,144 + 4 bytes are two frames of 256 KiB at most.
  const LayerSpec dense = {"conv", LayerKind::kConvolution, 1, 65537, 65537, 1};
  EXPECT_THAT(
      PredictLinkBytes({dense}, {Route{Scheme::kServer}}, Place({dense}, 1),
                       HostMap::OneEach(2, 1), 48, kFrameMax),
      ElementsAre(2 * (4 * 65537 + 2 * 48), 2 * (4 * 65537 + 2 * 48)));

  // K x M is 1 x 32768 elements, one frame; K x N 1 x 65537, two.
  const LayerSpec layer = Fc(32768, 65537, 1);
  const int64_t sent = 4 * (32768 + 65537) + 3 * 48;
  EXPECT_THAT(
      PredictLinkBytes({layer}, {Route{Scheme::kFactor}}, Place({layer}, 1),
                       HostMap::OneEach(3, 1), 48, kFrameMax),
      Each(2 * 2 * sent));
}

TEST(TrafficTest, BiasTravelsWithTheServersOnly) {
  LayerSpec layer = Fc(100, 10, 2);
  layer.parameters += layer.m;
  EXPECT_THAT(PayloadOf(layer, Scheme::kServer, {2, 1}), Each(2 * 4 * 1100));
  EXPECT_THAT(PayloadOf(layer, Scheme::kFactor, {2, 1}), Each(2 * 4 * 220));
}

TEST(TrafficTest, LayersAddUp) {
  const std::vector<LayerSpec> layers = *LoadModel("alexnet", 32);
  const Placement placement = Place(layers, 4);
  PlanOptions options;
  options.cluster = {4, 4};
  const Plan plan = *MakePlan(layers, options);
  ASSERT_THAT(plan.routes, testing::Contains(Route{Scheme::kFactor}));

  // Each sent byte is received. So the sum over all nodes is twice the workers'
  // sent bytes, minus the bytes that stay within a node.
  int64_t expected = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (plan.routes[i].scheme == Scheme::kFactor) {
      const int64_t k = layers[i].rows;
      expected += 2 * 4 * 3 * 4 * k * (layers[i].m + layers[i].n);
    } else {
      expected += 2 * 2 * 3 * 4 * layers[i].parameters;
    }
  }
  int64_t total = 0;
  for (const int64_t bytes :
       PredictLinkBytes(layers, plan.routes, placement, HostMap::OneEach(4, 4),
                        0, kFrameMax)) {
    total += bytes;
  }
  EXPECT_EQ(total, expected);
}

TEST(TrafficTest, SingleNodeMovesNothing) {
  EXPECT_THAT(PayloadOf(Fc(64, 64, 8), Scheme::kServer, {1, 1}),
              ElementsAre(0));
  EXPECT_THAT(PayloadOf(Fc(64, 64, 8), Scheme::kFactor, {1, 1}),
              ElementsAre(0));
}

TEST(TrafficTest, TrafficBeyondInt64IsTheLargestNumber) {
  const LayerSpec layer = Fc(int64_t{1} << 20, 1, kLayerRowsMax);
  EXPECT_THAT(
      PredictLinkBytes({layer}, {Route{Scheme::kFactor}}, Place({layer}, 2),
                       HostMap::OneEach(kWorkersMax, 2), 48, kFrameMax),
      Each(std::numeric_limits<int64_t>::max()));
}

TEST(HostTrafficTest, EvenHostsMatchTheCostModel) {
  // 32 chunks, and segments of equal lengths.
  const LayerSpec layer = Fc(4096, 4096, 32);
  for (const ClusterShape& cluster :
       {ClusterShape{8, 2, 2}, ClusterShape{8, 4, 4}, ClusterShape{12, 4, 4},
        ClusterShape{8, 8, 4}, ClusterShape{6, 2, 1}, ClusterShape{1, 1, 1}}) {
    for (const Scheme scheme : kSchemes) {
      EXPECT_THAT(PayloadOf(layer, scheme, cluster),
                  Each(4 * SchemeElements(layer, scheme, cluster)))
          << SchemeName(scheme) << ", " << cluster.workers << " workers on "
          << cluster.hosts;
    }
  }
}

TEST(HostTrafficTest, UnevenHostsAreCountedOneByOne) {
  // Workers on hosts 0, 1, 1, 1 and 2; shards on hosts 1 and 3. Host 3 has no
  // worker.
  const HostMap hosts({0, 1, 1, 1, 2}, {1, 3});
  const auto bytes = [&](const LayerSpec& layer, Scheme scheme) {
    return PredictLinkBytes({layer}, {Route{scheme}}, Place({layer}, 2), hosts,
                            /*frame_header_bytes=*/0, kFrameMax);
  };
  // Chunks of 524288 and 712 elements, on shards 0 and 1. Each host moves a
  // chunk once each way, however many workers it has.
  const LayerSpec conv = {"conv", LayerKind::kConvolution, 1, 525000, 525000,
                          1};
  const int64_t large = 2 * 4 * 524288;
  const int64_t small = 2 * 4 * 712;
  EXPECT_THAT(
      bytes(conv, Scheme::kServer),
      ElementsAre(large + small, 2 * large + small, large + small, 3 * small));
  // Rows of 50 elements, 7 for each worker: sent to 2 hosts, received from all
  // workers of other hosts.
  const LayerSpec fc = Fc(30, 20, 7);
  const int64_t rows = 4 * 7 * 50;
  EXPECT_THAT(bytes(fc, Scheme::kFactor),
              ElementsAre((1 * 2 + 4) * rows, (3 * 2 + 2) * rows,
                          (1 * 2 + 4) * rows, 0));
  // Segments of 208, 208 and 184 elements, one for each host with workers.
  EXPECT_THAT(bytes(fc, Scheme::kRing),
              ElementsAre(4 * (2400 - 208 - 2 * 208 - 184),
                          4 * (2400 - 208 - 2 * 184 - 208),
                          4 * (2400 - 184 - 2 * 208 - 208), 0));
}

TEST(HostTrafficTest, SegmentsFollowTheRingOfHosts) {
  // The ring begins at host 2, the host of worker 0.
  const LayerSpec layer = Fc(30, 20, 7);
  const HostMap hosts({2, 0, 1, 1}, {0});
  EXPECT_THAT(PredictLinkBytes({layer}, {Route{Scheme::kRing}},
                               Place({layer}, 1), hosts, 0, kFrameMax),
              ElementsAre(4 * (2400 - 208 - 2 * 184 - 208),
                          4 * (2400 - 184 - 2 * 208 - 208),
                          4 * (2400 - 208 - 2 * 208 - 184)));
}

TEST(HostTrafficTest, FramesAndPullsCountOnceForEachHost) {
  // 65537 elements are two frames. Three hosts of two workers; the shard is on
  // host 0, which sends to two hosts.
  const LayerSpec layer = {"conv", LayerKind::kConvolution, 1, 65537, 65537, 1};
  const int64_t host = 2 * (4 * 65537 + 2 * 48) + 48;
  EXPECT_THAT(PredictLinkBytes({layer}, {Route{Scheme::kServer}},
                               Place({layer}, 1), HostMap::Of({6, 1, 3}), 48,
                               kFrameMax, /*decoupled=*/true),
              ElementsAre(2 * host, host, host));
}

TEST(InitialTrafficTest, EachWorkerOfAHostFetchesByItself) {
  // Hosts of two workers, the shard on host 0. The values of worker 0 stay on
  // its host.
  const LayerSpec layer = {"a", LayerKind::kVector, 1, 10, 10, 1};
  const int64_t fetch = 48 + (48 + 40);
  EXPECT_THAT(
      PredictInitialBytes({Route()}, Place({layer}, 1), HostMap::Of({4, 1, 2}),
                          48, kFrameMax, /*servers_update=*/true),
      ElementsAre(2 * fetch, 2 * fetch));
  // Shard on host 1: worker 0 sends the values there first.
  EXPECT_THAT(
      PredictInitialBytes({Route()}, Place({layer}, 1), HostMap({0, 0, 0}, {1}),
                          48, kFrameMax, /*servers_update=*/true),
      ElementsAre(48 + 40 + 3 * fetch, 48 + 40 + 3 * fetch));
}

TEST(InitialTrafficTest, FirstWorkerSendsAndEachWorkerFetches) {
  // Chunk 0 (2 MiB, 8 frames) is on shard 0, chunk 1 (712 elements, 1 frame) on
  // shard 1.
  const std::vector<LayerSpec> layers = {
      {"conv", LayerKind::kConvolution, 1, 525000, 525000, 1}};
  const int64_t header = 48;
  const int64_t large = 4 * 524288 + 8 * header;
  const int64_t small = 4 * 712 + header;
  EXPECT_THAT(
      PredictInitialBytes({Route()}, Place(layers, 2), HostMap::OneEach(3, 2),
                          header, kFrameMax,
                          /*servers_update=*/true),
      ElementsAre(
          // Worker 0 sends and fetches chunk 1; shard 0 serves the two others.
          small + (header + small) + 2 * (header + large),
          // Worker 1 fetches chunk 0; shard 1 is filled and serves the two
          // others.
          (header + large) + small + 2 * (header + small),
          // Worker 2 fetches both chunks.
          (header + large) + (header + small)));
}

TEST(InitialTrafficTest, SingleWorkerFillsAndReadsRemoteShards) {
  // First there is one chunk, on shard 0, on the worker's node; then two, the
  // second remote.
  const LayerSpec a = {"a", LayerKind::kVector, 1, 10, 10, 1};
  const LayerSpec b = {"b", LayerKind::kVector, 1, 5, 5, 1};
  EXPECT_THAT(PredictInitialBytes({Route()}, Place({a}, 2),
                                  HostMap::OneEach(1, 2), 48, kFrameMax, true),
              ElementsAre(0, 0));
  const int64_t remote = (48 + 20) + 48 + (48 + 20);
  EXPECT_THAT(PredictInitialBytes({Route(), Route()}, Place({a, b}, 2),
                                  HostMap::OneEach(1, 2), 48, kFrameMax, true),
              ElementsAre(remote, remote));
}

TEST(TrafficTest, SixteenBitTypesHalveThePayloads) {
  const LayerSpec layer = Fc(300, 401, 32);
  const Placement placement = Place({layer}, 2);
  for (const Scheme scheme : kSchemes) {
    const auto payload = [&](WireType wire) {
      return PredictLinkBytes({layer}, {Route{scheme, wire}}, placement,
                              HostMap::OneEach(3, 2), 0, kFrameMax);
    };
    const auto all = [&](WireType wire) {
      return PredictLinkBytes({layer}, {Route{scheme, wire}}, placement,
                              HostMap::OneEach(3, 2), 64, kFrameMax);
    };
    for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
      for (size_t node = 0; node < 3; ++node) {
        const int64_t full = payload(WireType::kFloat32)[node];
        EXPECT_EQ(2 * payload(wire)[node], full);
        // Frames end at the same elements, so there are as many headers.
        EXPECT_EQ(all(wire)[node] - payload(wire)[node],
                  all(WireType::kFloat32)[node] - full);
      }
    }
  }
}

TEST(InitialTrafficTest, OnlyShardUpdatesAreFetchedBySixteenBits) {
  const LayerSpec layer = {"a", LayerKind::kVector, 1, 10, 10, 1};
  const Placement placement = Place({layer}, 1);
  // Bytes of worker 1, which is not on the shard's node.
  const auto fetched = [&](Scheme scheme, bool servers_update) {
    return PredictInitialBytes({Route{scheme, WireType::kBfloat16}}, placement,
                               HostMap::OneEach(2, 1), 0, kFrameMax,
                               servers_update)[1];
  };
  EXPECT_EQ(fetched(Scheme::kServer, true), 20);
  EXPECT_EQ(fetched(Scheme::kServer, false), 40);
  EXPECT_EQ(fetched(Scheme::kRing, true), 40);
}

}  // namespace
}  // namespace nereus
