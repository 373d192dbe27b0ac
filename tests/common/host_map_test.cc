#include "common/plan/host_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace nereus {
namespace {

using testing::Each;
using testing::ElementsAre;

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
