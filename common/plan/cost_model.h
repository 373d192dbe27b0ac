#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/plan/scheme.h"

namespace nereus {

// Limits on the members of a job.
inline constexpr int64_t kWorkersMax = 65536;
inline constexpr int64_t kServersMax = 65536;

// Numbers of workers, servers and hosts. A host is a machine with one link to
// the network; its workers add up their gradients in memory, so that the host
// sends as much as a single worker would.
//
// A job whose workers each send by themselves counts each as a host, `hosts` of
// 0, wherever they run.
//
// With `hosts` of 0 worker i and server i share a host of their own, so there
// are max(workers, servers) hosts. Otherwise all members are on `hosts` hosts:
// the workers evenly and in order; the servers on the first hosts, or evenly
// and in order if they are more than the hosts. Host 0 then has as many workers
// and servers as any host.
struct ClusterShape {
  int64_t workers = 1;  // Number of workers.
  int64_t servers = 1;  // P2 of the paper: the number of shards.
  int64_t hosts = 0;    // Number of hosts; 0: one for each worker.

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;

  // Number of hosts with workers: P1 of the paper, where each has one worker.
  int64_t worker_hosts() const { return hosts == 0 ? workers : hosts; }
  // Number of workers of a host with most workers.
  int64_t host_workers_most() const {
    return (workers + worker_hosts() - 1) / worker_hosts();
  }
  // Number of workers of a host with fewest workers.
  int64_t host_workers_least() const { return workers / worker_hosts(); }
  // Number of servers of a host with most servers.
  int64_t host_servers_most() const {
    return hosts == 0 ? 1 : (servers + hosts - 1) / hosts;
  }
  // True if a host has two workers or more.
  bool shares_hosts() const { return host_workers_most() > 1; }

  // Returns the host of a worker. REQUIRES: 0 <= worker < workers.
  int64_t HostOfWorker(int64_t worker) const {
    return worker * worker_hosts() / workers;
  }
  // Returns the host of a server. REQUIRES: 0 <= server < servers.
  int64_t HostOfServer(int64_t server) const {
    return hosts == 0 || servers <= hosts ? server : server * hosts / servers;
  }
};

// Formulas of the elements that the link of one host carries for one layer in
// one step, sent plus received. An element is a value: multiply by the wire
// type's bytes. Headers are not counted.
//
// Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for
// Distributed Deep Learning on GPU Clusters", USENIX ATC 2017, table 1. A layer
// has an M x N matrix and K rows on each worker; P2 servers hold an equal part
// each. H hosts with workers stand for the paper's P1 workers, and all rows of
// a host for the paper's K rows. The host has L of W workers and S servers: as
// many of both as any host of the cluster (ClusterShape). With a worker on each
// host, H = W, L = 1 and S = 1, the formulas are the paper's. With one host all
// of them are 0.
//
// REQUIRES, for all: a valid layer and cluster. Each result is exact up to one
// division at the end, which rounds down; a result beyond int64_t is returned
// as its largest value.

// Returns the elements of a host with workers and servers, for Scheme::kServer:
// 2 M N (P2 + S (H - 2)) / P2, with one server a host 2 M N (H + P2 - 2) / P2.
// `elements` stands for M N; pass the layer's `parameters` to count the bias
// too. Frames between members of one host cross no link. Example: 4096 x 4096
// on 8 hosts with a server each, 58,720,256 elements.
int64_t ServerSchemeBothElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a host for Scheme::kFactor: K (M + N) (L (H - 1) + W
// - L), with L workers on every host 2 K L (H - 1) (M + N). Each worker sends K
// rows of both factors to every other host, and each host receives the rows of
// all workers of other hosts. Example: 4096 x 4096, K = 32, on 8 hosts with a
// worker each, 3,670,016 elements.
int64_t FactorSchemeElements(const LayerSpec& layer,
                             const ClusterShape& cluster);

// Returns the elements of a host for Scheme::kRing: 4 M N (H - 1) / H. Each
// host sends and receives all but its own segment twice, for reduce-scatter and
// for all-gather (Patarasuk and Yuan, JPDC 2009). `elements` stands for M N.
int64_t RingSchemeElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a host for `scheme`, by the formula above that
// belongs to it, with all the layer's parameters as M N.
int64_t SchemeElements(const LayerSpec& layer, Scheme scheme,
                       const ClusterShape& cluster);

// True if factors move no more elements than servers do, by the formulas above
// for the layer's matrix. This is the test of Poseidon's algorithm 1
// (BestScheme); a tie is true, as there. Compared without a division, and so
// exactly.
bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster);

// Number of rows of all workers from which on the workers of a host share the
// product of the factors. With fewer rows it is cheaper that each worker
// multiplies all rows than that the workers copy each other's results.
inline constexpr int64_t kSharedProductRowsMin = 32;

// True if workers of one host share the product of a layer's factors, each a
// part of it.
bool SharesProduct(const LayerSpec& layer, const ClusterShape& cluster);

// Returns the elements that the workers of one host hand each other through
// memory for one layer in one step, each counted once: float32 values, except
// that factors have the route's wire type. A host's L workers hand one of them
// their part of each sum and get the outcome back, 2 (L - 1) M N. By factors
// they hand each other the rows of all workers, (L - 1) W K (M + N), and if
// they share the product its parts, (L - 1) M N. `layer.m` and `layer.n` alone
// count, as in RouteExplanation. Zero with one worker a host.
int64_t LocalElements(const LayerSpec& layer, Scheme scheme,
                      const ClusterShape& cluster);

}  // namespace nereus
