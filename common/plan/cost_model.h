#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/plan/scheme.h"

namespace nereus {

// Limits on the members of a job.
inline constexpr int64_t kWorkersMax = 65536;
inline constexpr int64_t kServersMax = 65536;

// Numbers of workers, servers and hosts. In common/plan, the link of a host is
// the host's connection to the network. The workers of a host add up their
// gradients in memory, so the host sends as much as a single worker would.
//
// With `hosts` of 0, worker i and server i are alone on host i, so there are
// max(workers, servers) hosts. This is also the shape of a job whose workers
// each send their own gradients, on whatever hosts they run.
//
// With `hosts` above 0, all members are on that many hosts. Workers are spread
// over the hosts evenly and in order. Servers are on the first hosts, one each;
// if there are more servers than hosts, they too are spread evenly and in
// order. No host has more workers or more servers than host 0.
struct ClusterShape {
  int64_t workers = 1;  // Number of workers.
  int64_t servers = 1;  // Number of servers, and of shards. P2 of the paper.
  int64_t hosts = 0;    // Number of hosts; 0: each worker has its own host.

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;

  // Number of hosts with workers. If each has one worker, this is P1 of the
  // paper.
  int64_t worker_hosts() const { return hosts == 0 ? workers : hosts; }
  // Number of workers of the host that has the most.
  int64_t host_workers_most() const {
    return (workers + worker_hosts() - 1) / worker_hosts();
  }
  // Number of workers of the host that has the fewest. Hosts without workers do
  // not count.
  int64_t host_workers_least() const { return workers / worker_hosts(); }
  // Number of servers of the host that has the most.
  int64_t host_servers_most() const {
    return hosts == 0 ? 1 : (servers + hosts - 1) / hosts;
  }
  // True if at least one host has two workers or more.
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
// one step, sent plus received. An element is one value: its bytes depend on
// the wire type. Headers are not counted.
//
// Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for
// Distributed Deep Learning on GPU Clusters", USENIX ATC 2017, table 1. The
// letters of the formulas:
//
//   M, N  rows and columns of the layer's matrix
//   K     rows of the layer's input on one worker
//   P2    number of servers; each has an equal part of the layer
//   H     number of hosts with workers, in the place of the paper's P1 workers
//   W     number of workers
//   L, S  numbers of workers and servers on host 0
//
// The formulas are those of host 0: no other host has more workers or more
// servers. With one worker and one server on each host (H = W, L = 1, S = 1)
// the formulas of servers and of factors are the paper's. If all members are on
// one host, every formula gives 0.
//
// REQUIRES, for all: a valid layer and cluster. Each result is exact, except
// for one division at the end, which rounds down. For a result beyond int64_t,
// the functions return the largest int64_t.

// Returns the elements of a host with workers and servers, for Scheme::kServer:
// 2 M N (P2 + S (H - 2)) / P2. With S = 1 this is 2 M N (H + P2 - 2) / P2.
// `elements` stands for M N: pass LayerSpec::parameters to count the bias too.
// Frames between members of one host cross no link. Example: a layer of 4096 x
// 4096 on 8 hosts with a server each has 58,720,256 elements.
int64_t ServerSchemeBothElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a host for Scheme::kFactor: K (M + N) (L (H - 1) + W
// - L). If every host has L workers, this is 2 K L (H - 1) (M + N). Each worker
// sends K rows of both factors to every other host, and each host receives the
// rows of all workers of other hosts. Example: a layer of 4096 x 4096 with K =
// 32 on 8 hosts with a worker each has 3,670,016 elements.
int64_t FactorSchemeElements(const LayerSpec& layer,
                             const ClusterShape& cluster);

// Returns the elements of a host for Scheme::kRing: 4 M N (H - 1) / H. A
// segment is one H-th of the layer. Each host sends H - 1 segments, and
// receives as many, both while the ring sums (reduce-scatter) and while it
// spreads the means (all-gather). See Patarasuk and Yuan, JPDC 2009. `elements`
// stands for M N.
int64_t RingSchemeElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a host for Scheme::kDirect: 2 M N (H - 1). Each host
// sends the layer to every other host, and receives it from every other host.
// `elements` stands for M N.
int64_t DirectSchemeElements(int64_t elements, const ClusterShape& cluster);

// Returns the elements of a host for `scheme`, by the formula above. M N is the
// number of all parameters of the layer, the bias too; in the formula of
// factors, M and N are those of the matrix.
int64_t SchemeElements(const LayerSpec& layer, Scheme scheme,
                       const ClusterShape& cluster);

// True if Scheme::kFactor moves at most as many elements as Scheme::kServer, by
// the formulas above for the layer's matrix. This is the test of Poseidon's
// algorithm 1 (BestScheme): equal numbers count for factors there too. The
// comparison needs no division, so it is exact. The layer need not have
// factors.
bool FactorsMoveNoMore(const LayerSpec& layer, const ClusterShape& cluster);

// Smallest number of rows, of all workers together, for which the workers of a
// host share the product of the factors. With fewer rows, sharing costs more:
// copying the results of other workers then takes longer than computing them.
inline constexpr int64_t kSharedProductRowsMin = 32;

// True if the workers of a host share the product of a layer's factors: each
// multiplies at least one row of the product, and copies the other rows from
// the other workers of the host. `workers`: number of all workers. `local`:
// number of workers of the host.
bool SharesProduct(const LayerSpec& layer, int64_t workers, int64_t local);

// Returns the time in which a worker multiplies a layer's factors, in units of
// the product of one worker's factors. If the workers of a host share the
// product, each computes a part of the product of all workers' factors.
// Otherwise a worker multiplies the factors of all its peers; the product of
// its own factors is part of the backward pass. Arguments as for SharesProduct.
double ProductsOf(const LayerSpec& layer, int64_t workers, int64_t local);

// Returns the elements that the workers of host 0 hand each other through
// memory for one layer in one step, each counted once. All are float32 values,
// but for the factors that a worker sends its mates: they have the route's wire
// type.
//
//   by servers, on a ring,  2 (L - 1) M N: L - 1 workers hand their gradients
//   directly                to one worker, and get the result back
//   by factors              (L - 1) W K (M + N): each worker gets the rows of
//                           all workers
//   with a shared product   (L - 1) M N more: each worker gets the parts that
//                           the others multiplied
//
// Only the matrix counts and not the bias, as in RouteExplanation. The result
// is 0 if every host has one worker.
int64_t LocalElements(const LayerSpec& layer, Scheme scheme,
                      const ClusterShape& cluster);

}  // namespace nereus
