// Bytes that a plan moves: those of each node, compared with the cost model and
// with the paper's example; those of a job's start (InitialTrafficTest); the
// cost model itself, by hand counts; and the hosts of workers and servers.

#include "common/plan/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "common/plan/cost_model.h"
#include "common/plan/host_map.h"
#include "common/plan/model_table.h"
#include "common/plan/scheme.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::Each;
using testing::ElementsAre;

// Largest number of elements per frame.
constexpr int64_t kFrameMax = 64 << 10;

LayerSpec Fc(int64_t m, int64_t n, int64_t k) {
  return {"fc", LayerKind::kFullyConnected, m, n, m * n, k, true};
}

LayerSpec Conv(int64_t elements) {
  return {"conv", LayerKind::kConvolution, 1, elements, elements, 1};
}

Placement Place(const std::vector<LayerSpec>& layers, int shards) {
  absl::StatusOr<Placement> placement =
      Placement::Make(layers, shards, kChunkBytesMax);
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

// Values that a node sends plus receives, and the frames that carry them.
struct Moved {
  int64_t values;
  int64_t frames;
};

using Nodes = std::vector<Moved>;

struct HandCount {
  const char* name;
  LayerSpec layer;
  Scheme scheme;
  int64_t workers;
  int64_t servers;
  Nodes nodes;
};

LayerSpec WithBias(LayerSpec layer) {
  layer.parameters += layer.m;
  return layer;
}

// Three segments of 600 elements have 208, 208 and 184. Conv(525000) has a
// chunk of 524288 elements, which is 8 frames, on shard 0, and a chunk of 712,
// which is one frame, on shard 1.
const HandCount kHandCounts[] = {
    {"factors", Fc(30, 20, 7), Scheme::kFactor, 3, 5,
     Nodes{{4 * 350, 8}, {4 * 350, 8}, {4 * 350, 8}, {0, 0}, {0, 0}}},
    {"long factor", Fc(32768, 65537, 1), Scheme::kFactor, 3, 1,
     Nodes(3, {4 * (32768 + 65537), 4 * (1 + 2)})},
    {"uneven ring", Fc(30, 20, 7), Scheme::kRing, 3, 4,
     Nodes{{2400 - 208 - 2 * 208 - 184, 8},
           {2400 - 208 - 2 * 184 - 208, 8},
           {2400 - 184 - 2 * 208 - 208, 8},
           {0, 0}}},
    {"even ring", Fc(64, 64, 7), Scheme::kRing, 8, 1,
     Nodes(8, {4 * 7 * 512, 4 * 7})},
    {"direct", Conv(65537), Scheme::kDirect, 3, 4,
     Nodes{{4 * 65537, 4 * 2}, {4 * 65537, 4 * 2}, {4 * 65537, 4 * 2}, {0, 0}}},
    {"uneven shards", Conv(525000), Scheme::kServer, 3, 2,
     Nodes{{2 * (712 + 2 * 524288), 2 * (1 + 2 * 8)},
           {2 * (524288 + 2 * 712), 2 * (8 + 2 * 1)},
           {2 * (524288 + 712), 2 * (8 + 1)}}},
    {"two frames", Conv(65537), Scheme::kServer, 2, 1,
     Nodes(2, {2 * 65537, 2 * 2})},
    {"bias to a server", WithBias(Fc(100, 10, 2)), Scheme::kServer, 2, 1,
     Nodes(2, {2 * 1100, 2})},
    {"no bias by factors", WithBias(Fc(100, 10, 2)), Scheme::kFactor, 2, 1,
     Nodes(2, {2 * 220, 2 * 2})},
};

// Frames have headers of 48 bytes, and end at the same elements in each wire
// type.
TEST(TrafficTest, TrafficMatchesAHandCount) {
  for (const HandCount& c : kHandCounts) {
    for (const WireType wire : kWireTypes) {
      const int64_t value_bytes = wire == WireType::kFloat32 ? 4 : 2;
      std::vector<int64_t> expected;
      for (const auto& [values, frames] : c.nodes) {
        expected.push_back(value_bytes * values + 48 * frames);
      }
      EXPECT_EQ(PredictLinkBytes({c.layer}, {Route{c.scheme, wire}},
                                 Place({c.layer}, static_cast<int>(c.servers)),
                                 HostMap::OneEach(c.workers, c.servers), 48,
                                 kFrameMax),
                expected)
          << c.name << ", " << WireTypeName(wire);
    }
  }
}

TEST(TrafficTest, LayersAddUp) {
  LayerSpec on_ring = Fc(30, 20, 7);
  on_ring.name = "ring";
  const std::vector<LayerSpec> layers = {
      Conv(525000),
      {"vector", LayerKind::kVector, 1, 1000, 1000, 1},
      Fc(30, 20, 7),
      on_ring};
  // The vector is on shard 1, with the small chunk of the convolution.
  const int64_t large = 2 * 524288;
  const int64_t small = 2 * (712 + 1000);
  const int64_t factors = 4 * 350;
  EXPECT_THAT(
      PredictLinkBytes(layers,
                       {Route{Scheme::kServer}, Route{Scheme::kServer},
                        Route{Scheme::kFactor}, Route{Scheme::kRing}},
                       Place(layers, 2), HostMap::OneEach(3, 2), 0, kFrameMax),
      ElementsAre(
          4 * (small + 2 * large + factors + 2400 - 208 - 2 * 208 - 184),
          4 * (large + 2 * small + factors + 2400 - 208 - 2 * 184 - 208),
          4 * (large + small + factors + 2400 - 184 - 2 * 208 - 208)));
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
  const LayerSpec large = Fc(4096, 4096, 32);
  const LayerSpec small = Fc(64, 64, 32);
  for (const ClusterShape& cluster :
       {ClusterShape{8, 2, 2}, ClusterShape{8, 4, 4}, ClusterShape{12, 4, 4},
        ClusterShape{8, 8, 4}, ClusterShape{6, 2, 1}, ClusterShape{1, 1, 1}}) {
    for (const Scheme scheme : kSchemes) {
      const LayerSpec& layer = scheme == Scheme::kDirect ? small : large;
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
  const LayerSpec conv = Conv(525000);
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

TEST(HostTrafficTest, FramesCountOnceForEachHost) {
  // 65537 elements are two frames. Three hosts of two workers; the shard is on
  // host 0, which sends to two hosts.
  const LayerSpec layer = Conv(65537);
  const int64_t host = 2 * (4 * 65537 + 2 * 48);
  EXPECT_THAT(
      PredictLinkBytes({layer}, {Route{Scheme::kServer}}, Place({layer}, 1),
                       HostMap::Of({6, 1, 3}), 48, kFrameMax),
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
  // Chunk 0 (8 frames) is on shard 0, chunk 1 (1 frame) on shard 1.
  const int64_t large = 4 * 524288 + 8 * 48;
  const int64_t small = 4 * 712 + 48;
  EXPECT_THAT(
      PredictInitialBytes({Route()}, Place({Conv(525000)}, 2),
                          HostMap::OneEach(3, 2), 48, kFrameMax,
                          /*servers_update=*/true),
      ElementsAre(
          // Worker 0 sends and fetches chunk 1; shard 0 serves the two others.
          small + (48 + small) + 2 * (48 + large),
          // Worker 1 fetches chunk 0; shard 1 is filled and serves the two
          // others.
          (48 + large) + small + 2 * (48 + small),
          // Worker 2 fetches both chunks.
          (48 + large) + (48 + small)));
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

struct Case {
  const char* name;
  LayerSpec layer;
  ClusterShape cluster;
  int64_t by_servers;
  int64_t by_factors;
};

class CostModelTest : public testing::TestWithParam<Case> {};

TEST_P(CostModelTest, ElementsMatchAHandCount) {
  const Case& c = GetParam();
  EXPECT_EQ(ServerSchemeBothElements(c.layer.m * c.layer.n, c.cluster),
            c.by_servers);
  EXPECT_EQ(FactorSchemeElements(c.layer, c.cluster), c.by_factors);
}

TEST(CostModelTest, RingMovesFourTimesTheLayerLessAPart) {
  EXPECT_EQ(RingSchemeElements(4096 * 4096, {8, 8}), 58720256);
  EXPECT_EQ(RingSchemeElements(1000, {1, 1}), 0);
  EXPECT_EQ(RingSchemeElements(1000, {2, 5}), 2000);
  EXPECT_EQ(RingSchemeElements(1000, {3, 1}), 2666);  // 2666.7
  // A ring of hosts moves as much as a ring of workers.
  EXPECT_EQ(RingSchemeElements(4096 * 4096, {64, 8, 8}), 58720256);
  EXPECT_EQ(RingSchemeElements(1000, {8, 1, 1}), 0);
  EXPECT_EQ(RingSchemeElements(1000, {8, 1, 3}), 2666);
}

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Table, CostModelTest,
    testing::Values(
        // The paper's own example: 58.7M elements by the servers, 3.7M by
        // factors.
        Case{"papers_example", Fc(4096, 4096, 32), {8, 8}, 58720256, 3670016},
        Case{"one_node_sends_nothing", Fc(10, 20, 4), {1, 1}, 0, 0},
        Case{"fewer_servers_than_workers", Fc(10, 10, 64), {4, 2}, 400, 7680},
        Case{"more_servers_than_workers", Fc(10, 10, 1), {2, 4}, 200, 40},
        // 2 x 12 x 8 / 7 = 27.4.
        Case{"division_rounds_down", Fc(3, 4, 1), {3, 7}, 27, 28},
        Case{"beyond_int64_is_the_largest",
             {"fc", LayerKind::kFullyConnected, kLayerParametersMax, 1,
              kLayerParametersMax, kLayerRowsMax, true},
             {kWorkersMax, 1},
             (int64_t{1} << 41) * 65535,
             kMax}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Hosts, CostModelTest,
    testing::Values(
        // Both halves of two hosts by hand: a host sends and receives half of
        // the layer twice, once as a worker and once as a server. It sends the
        // rows of 4 workers, and receives those of 4.
        Case{"two_hosts_of_four",
             Fc(4096, 4096, 32),
             {8, 2, 2},
             2 * 4096 * 4096,
             8 * 32 * 8192},
        Case{"one_host_sends_nothing", Fc(10, 20, 4), {8, 3, 1}, 0, 0},
        Case{"one_worker_on_one_host", Fc(10, 20, 4), {1, 4, 1}, 0, 0},
        Case{"as_many_hosts_as_workers",
             Fc(4096, 4096, 32),
             {8, 8, 8},
             58720256,
             3670016},
        // Hosts of 3, 2 and 2 workers. The first one sends 3 workers' rows to 2
        // hosts and receives the rows of 4; it has one of two servers.
        Case{"uneven_hosts",
             Fc(10, 10, 1),
             {7, 2, 3},
             2 * 100 * 3 / 2,
             (3 * 2 + 4) * 20},
        // Hosts of 3 and 2 servers: 2 of 5 parts to and from other servers, 3
        // of 5 for the other host.
        Case{"more_servers_than_hosts", Fc(10, 10, 1), {4, 5, 2}, 200, 80},
        // Hosts of 2, 1 and 1 servers: 2 of 4 parts to and from others, 2 of 4
        // for two other hosts.
        Case{"uneven_servers", Fc(10, 10, 1), {6, 4, 3}, 300, 160},
        Case{"hosts_beyond_int64",
             {"fc", LayerKind::kFullyConnected, kLayerParametersMax, 1,
              kLayerParametersMax, kLayerRowsMax, true},
             {kWorkersMax, kServersMax, kWorkersMax / 2},
             (int64_t{1} << 42) * 32767 / 32768,
             kMax}),
    [](const auto& info) { return info.param.name; });

TEST(CostModelTest, LocalElementsMatchAHandCount) {
  const LayerSpec layer = Fc(4096, 4096, 32);
  const int64_t matrix = 4096 * 4096;
  const int64_t row = 4096 + 4096;
  for (const Scheme scheme : kSchemes) {
    // Alone on its host, a worker hands nothing to another.
    EXPECT_EQ(LocalElements(layer, scheme, {8, 8}), 0);
    EXPECT_EQ(LocalElements(layer, scheme, {8, 8, 8}), 0);
  }
  // Three parts come to a worker, and the outcome goes to three.
  for (const Scheme scheme : {Scheme::kServer, Scheme::kRing}) {
    EXPECT_EQ(LocalElements(layer, scheme, {8, 2, 2}), 2 * 3 * matrix);
    EXPECT_EQ(LocalElements(layer, scheme, {4, 1, 1}), 2 * 3 * matrix);
    // Hosts of 3, 2 and 2 workers.
    EXPECT_EQ(LocalElements(layer, scheme, {7, 2, 3}), 2 * 2 * matrix);
  }
  // Each row of 8 workers reaches 3 more workers of the host, and so does each
  // part of the product.
  EXPECT_EQ(LocalElements(layer, Scheme::kFactor, {8, 2, 2}),
            3 * 8 * 32 * row + 3 * matrix);
  EXPECT_EQ(LocalElements(layer, Scheme::kFactor, {8, 2, 2}), 56623104);
}

TEST(CostModelTest, FewRowsAreMultipliedByEachWorker) {
  EXPECT_TRUE(SharesProduct(Fc(100, 100, 4), 8, 4));
  EXPECT_FALSE(SharesProduct(Fc(100, 100, 3), 8, 4));
  // Alone on its host, a worker shares nothing.
  EXPECT_FALSE(SharesProduct(Fc(100, 100, 4), 8, 1));
  // Each of the four multiplies a row at least.
  EXPECT_TRUE(SharesProduct(Fc(4, 100, 4), 8, 4));
  EXPECT_FALSE(SharesProduct(Fc(3, 100, 4), 8, 4));
  EXPECT_EQ(LocalElements(Fc(100, 100, 3), Scheme::kFactor, {8, 1, 2}),
            3 * 8 * 3 * 200);
}

TEST(FactorsMoveNoMoreTest, HostsStandForWorkersAndTheirRowsForRows) {
  // P hosts with K rows each tie as P workers with K rows do.
  EXPECT_TRUE(FactorsMoveNoMore(Fc(4096, 4096, 8), {512, 128, 128}));
  EXPECT_FALSE(FactorsMoveNoMore(Fc(4096, 4096, 8), {516, 129, 129}));
  EXPECT_TRUE(FactorsMoveNoMore(Fc(4096, 4096, 32), {8, 2, 2}));
  // 2 hosts of 4 move 4 x 2 x 20 by factors, 200 by the servers. With 3 rows a
  // worker factors move 480.
  EXPECT_TRUE(FactorsMoveNoMore(Fc(10, 10, 1), {8, 2, 2}));
  EXPECT_FALSE(FactorsMoveNoMore(Fc(10, 10, 3), {8, 2, 2}));
}

TEST(FactorsMoveNoMoreTest, FactorsWinATie) {
  // With P workers and P servers both costs are equal at
  // P = 2 M N / (K (M + N)) = 128.
  EXPECT_TRUE(FactorsMoveNoMore(Fc(4096, 4096, 32), {128, 128}));
  EXPECT_FALSE(FactorsMoveNoMore(Fc(4096, 4096, 32), {129, 129}));
}

TEST(FactorsMoveNoMoreTest, ComparisonDoesNotRound) {
  // Factors cost 2 x 2 x 7 = 28. The servers cost 24 x 6 / 5 = 28.8,
  // 24 x 7 / 6 = 28, and 24 x 8 / 7 = 27.4, which would tie if rounded up.
  const LayerSpec layer = Fc(3, 4, 1);
  EXPECT_TRUE(FactorsMoveNoMore(layer, {3, 5}));
  EXPECT_TRUE(FactorsMoveNoMore(layer, {3, 6}));
  EXPECT_FALSE(FactorsMoveNoMore(layer, {3, 7}));
}

TEST(FactorsMoveNoMoreTest, ComparisonIsRightBeyondInt64) {
  // Both sides of the comparison exceed int64_t.
  const LayerSpec many_rows = {"fc",
                               LayerKind::kFullyConnected,
                               int64_t{1} << 20,
                               int64_t{1} << 20,
                               int64_t{1} << 40,
                               kLayerRowsMax};
  const ClusterShape cluster = {kWorkersMax, kServersMax};
  EXPECT_EQ(FactorSchemeElements(many_rows, cluster), kMax);
  EXPECT_FALSE(FactorsMoveNoMore(many_rows, cluster));
  LayerSpec one_row = many_rows;
  one_row.rows = 1;
  EXPECT_TRUE(FactorsMoveNoMore(one_row, {16, 16}));
}

TEST(ClusterShapeTest, EachFieldIsBounded) {
  EXPECT_TRUE((ClusterShape{1, 1}.Validate().ok()));
  EXPECT_TRUE((ClusterShape{kWorkersMax, kServersMax}.Validate().ok()));
  const struct {
    ClusterShape cluster;
    const char* message;
  } kCases[] = {
      {{0, 1}, "workers is 0"},
      {{kWorkersMax + 1, 1}, "workers is 65537, not from 1 to 65536"},
      {{1, -3}, "servers is -3"},
      {{1, kServersMax + 1}, "servers is 65537, not from 1 to 65536"},
      {{8, 1, 9}, "hosts is 9, of 8 workers"},
      {{8, 1, -1}, "hosts is -1"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(c.cluster.Validate(), IsInvalidArgument(c.message));
  }
}

std::vector<int64_t> HostsOfWorkers(const HostMap& map) {
  std::vector<int64_t> hosts;
  for (int64_t i = 0; i < map.workers(); ++i) {
    hosts.push_back(map.HostOfWorker(i));
  }
  return hosts;
}

std::vector<int64_t> HostsOfShards(const HostMap& map) {
  std::vector<int64_t> hosts;
  for (int64_t i = 0; i < map.shards(); ++i)
    hosts.push_back(map.HostOfShard(i));
  return hosts;
}

std::vector<int64_t> WorkersOfHosts(const HostMap& map) {
  std::vector<int64_t> workers;
  for (int64_t i = 0; i < map.hosts(); ++i) workers.push_back(map.WorkersAt(i));
  return workers;
}

TEST(HostMapTest, OneEachPutsWorkerAndShardOfANumberTogether) {
  const HostMap map = HostMap::OneEach(2, 4);
  EXPECT_EQ(map.workers(), 2);
  EXPECT_EQ(map.shards(), 4);
  EXPECT_EQ(map.hosts(), 4);
  EXPECT_THAT(HostsOfWorkers(map), ElementsAre(0, 1));
  EXPECT_THAT(HostsOfShards(map), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(WorkersOfHosts(map), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(map.ring(), ElementsAre(0, 1));
  EXPECT_EQ(HostMap::OneEach(4, 2).hosts(), 4);
}

TEST(HostMapTest, WorkersAreSpreadEvenlyAndInOrder) {
  EXPECT_THAT(HostsOfWorkers(HostMap::Of({8, 1, 2})),
              ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(HostsOfWorkers(HostMap::Of({7, 1, 3})),
              ElementsAre(0, 0, 0, 1, 1, 2, 2));
  EXPECT_THAT(HostsOfWorkers(HostMap::Of({3, 1, 1})), ElementsAre(0, 0, 0));
  EXPECT_THAT(HostsOfWorkers(HostMap::Of({3, 1, 3})), ElementsAre(0, 1, 2));
}

TEST(HostMapTest, ServersAreOnTheFirstHostsOrSpreadOverAll) {
  EXPECT_THAT(HostsOfShards(HostMap::Of({8, 3, 4})), ElementsAre(0, 1, 2));
  EXPECT_THAT(HostsOfShards(HostMap::Of({8, 4, 4})), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(HostsOfShards(HostMap::Of({8, 5, 2})),
              ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(HostMap::Of({8, 5, 2}).hosts(), 2);
}

// The formulas are those of a host with as many members as any other.
TEST(HostMapTest, FirstHostHasAsManyMembersAsAnyHost) {
  for (int64_t workers = 1; workers <= 9; ++workers) {
    for (int64_t servers = 1; servers <= 9; ++servers) {
      for (int64_t hosts = 0; hosts <= workers; ++hosts) {
        const ClusterShape cluster = {workers, servers, hosts};
        ASSERT_TRUE(cluster.Validate().ok());
        const HostMap map = HostMap::Of(cluster);
        const std::vector<int64_t> on_hosts = WorkersOfHosts(map);
        const std::vector<int64_t> shard_hosts = HostsOfShards(map);
        EXPECT_EQ(std::ssize(map.ring()), cluster.worker_hosts());
        EXPECT_EQ(on_hosts[0], cluster.host_workers_most());
        EXPECT_EQ(*std::ranges::max_element(on_hosts), on_hosts[0]);
        const auto last = on_hosts.begin() + cluster.worker_hosts();
        EXPECT_EQ(*std::min_element(on_hosts.begin(), last),
                  cluster.host_workers_least());
        for (int64_t host = 0; host < map.hosts(); ++host) {
          EXPECT_LE(std::ranges::count(shard_hosts, host),
                    cluster.host_servers_most());
        }
        EXPECT_EQ(std::ranges::count(shard_hosts, 0),
                  cluster.host_servers_most());
      }
    }
  }
}

TEST(HostMapTest, RingFollowsTheFirstWorkerOfEachHost) {
  // Host 1 has no worker, host 3 the first one.
  const HostMap map({3, 0, 3, 2, 0}, {1, 1});
  EXPECT_EQ(map.hosts(), 4);
  EXPECT_THAT(map.ring(), ElementsAre(3, 0, 2));
  EXPECT_THAT(WorkersOfHosts(map), ElementsAre(2, 0, 1, 2));
  EXPECT_THAT(HostsOfShards(map), Each(1));
}

TEST(HostMapDeathTest, HostsWithoutMembersAreRefused) {
  EXPECT_DEATH(HostMap({0, 2}, {0}), "host 1 has no member");
  EXPECT_DEATH(HostMap({}, {0}), "0 workers");
}

}  // namespace
}  // namespace nereus
