#include "common/plan/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace nereus {
namespace {

LayerSpec Fc(int64_t m, int64_t n, int64_t k) {
  return {"fc", LayerKind::kFullyConnected, m, n, m * n, k, true};
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

TEST(CostModelTest, RingOfHostsMovesWhatARingOfWorkersDoes) {
  EXPECT_EQ(RingSchemeElements(4096 * 4096, {64, 8, 8}), 58720256);
  EXPECT_EQ(RingSchemeElements(1000, {8, 1, 1}), 0);
  EXPECT_EQ(RingSchemeElements(1000, {8, 1, 3}), 2666);  // 2666.7
}

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
    const absl::Status status = c.cluster.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace nereus
