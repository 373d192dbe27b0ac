#include "common/plan/host_map.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"

namespace nereus {

HostMap::HostMap(std::vector<int32_t> worker_hosts,
                 std::vector<int32_t> shard_hosts)
    : worker_hosts_(std::move(worker_hosts)),
      shard_hosts_(std::move(shard_hosts)) {
  NEREUS_CHECK(!worker_hosts_.empty() && !shard_hosts_.empty())
      << workers() << " workers, " << shards() << " shards";
  NEREUS_CHECK(*absl::c_min_element(worker_hosts_) >= 0 &&
               *absl::c_min_element(shard_hosts_) >= 0);
  const int32_t last = std::max(*absl::c_max_element(worker_hosts_),
                                *absl::c_max_element(shard_hosts_));
  host_workers_.resize(static_cast<size_t>(last) + 1, 0);
  for (const int32_t host : worker_hosts_) {
    // The first worker of a host gives the host its place on the ring.
    if (++host_workers_[host] == 1) ring_.push_back(host);
  }
  // Checks that every host has a member: a caller must not leave gaps in the
  // numbers.
  std::vector<bool> used(host_workers_.size(), false);
  for (const int32_t host : worker_hosts_) used[host] = true;
  for (const int32_t host : shard_hosts_) used[host] = true;
  NEREUS_CHECK(absl::c_find(used, false) == used.end())
      << "host " << absl::c_find(used, false) - used.begin()
      << " has no member";
}

HostMap HostMap::OneEach(int64_t workers, int64_t shards) {
  return Of({workers, shards});
}

HostMap HostMap::Of(const ClusterShape& cluster) {
  std::vector<int32_t> worker_hosts;
  std::vector<int32_t> shard_hosts;
  worker_hosts.reserve(cluster.workers);
  shard_hosts.reserve(cluster.servers);
  for (int64_t worker = 0; worker < cluster.workers; ++worker) {
    worker_hosts.push_back(static_cast<int32_t>(cluster.HostOfWorker(worker)));
  }
  for (int64_t server = 0; server < cluster.servers; ++server) {
    shard_hosts.push_back(static_cast<int32_t>(cluster.HostOfServer(server)));
  }
  return HostMap(std::move(worker_hosts), std::move(shard_hosts));
}

}  // namespace nereus
