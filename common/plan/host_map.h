#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/cost_model.h"

namespace nereus {

// Host of each worker and of each shard. Only values that pass between hosts
// use a link; workers of one host hand each other values through memory. So an
// exact prediction of the bytes on links needs this map. Hosts have numbers
// from 0 without gaps.
//
// Immutable, so any thread may use it. Memory: a few numbers for each worker,
// shard and host.
class HostMap {
 public:
  // Maps worker i to host worker_hosts[i] and shard i to host shard_hosts[i].
  //
  // REQUIRES: at least one worker and one shard; the hosts have numbers from 0
  // without gaps.
  HostMap(std::vector<int32_t> worker_hosts, std::vector<int32_t> shard_hosts);

  // Maps worker i and shard i to host i. Use this map for a job in which each
  // worker sends its own gradients over the network, wherever the workers run.
  // REQUIRES: workers >= 1, shards >= 1.
  static HostMap OneEach(int64_t workers, int64_t shards);

  // Maps each worker and shard to the host that ClusterShape gives it.
  // REQUIRES: a valid cluster.
  static HostMap Of(const ClusterShape& cluster);

  // Number of workers.
  int64_t workers() const { return std::ssize(worker_hosts_); }
  // Number of shards.
  int64_t shards() const { return std::ssize(shard_hosts_); }
  // Number of hosts, including hosts without workers.
  int64_t hosts() const { return std::ssize(host_workers_); }

  // Returns the host of a worker. REQUIRES: 0 <= worker < workers().
  int32_t HostOfWorker(int64_t worker) const { return worker_hosts_[worker]; }
  // Returns the host of a shard. REQUIRES: 0 <= shard < shards().
  int32_t HostOfShard(int64_t shard) const { return shard_hosts_[shard]; }
  // Returns the number of workers of a host. REQUIRES: 0 <= host < hosts().
  int64_t WorkersAt(int64_t host) const { return host_workers_[host]; }

  // Hosts with workers, in the order of their first workers: the order of a
  // ring of hosts.
  absl::Span<const int32_t> ring() const { return ring_; }

 private:
  std::vector<int32_t> worker_hosts_;  // Host of each worker.
  std::vector<int32_t> shard_hosts_;   // Host of each shard.
  std::vector<int64_t> host_workers_;  // Number of workers of each host.
  std::vector<int32_t> ring_;          // Hosts with workers (ring()).
};

}  // namespace nereus
