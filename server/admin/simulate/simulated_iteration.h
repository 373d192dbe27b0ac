#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/network/simulated_network.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/planner.h"
#include "server/admin/simulate/simulated_trainer.h"

namespace nereus {

// A question: a model and a job on a cluster that need not exist.
struct WhatIf {
  // The model.
  std::vector<LayerSpec> layers;
  // Time that a device computes for each layer, forward and backward.
  std::vector<LayerTime> times;

  // Cluster and rules of the plan. A host's workers and servers share a node
  // and its network interface. The workers of a host send one sum of their
  // gradients, as in a running job; in partial rounds each worker sends its own
  // gradient. plan.time is ignored: PlanOptionsOf makes the time model from the
  // other fields.
  PlanOptions plan;

  // Bytes per second that each node can send, and also receive.
  double node_rate = kUnlimitedRate;
  // Bytes per second between the processes of a node, through its memory.
  double memory_rate = kUnlimitedRate;
  // Smallest latency of a frame between two nodes.
  absl::Duration latency = absl::ZeroDuration();
  // Largest addition to `latency`. Each frame between two nodes draws its own
  // addition, uniformly from 0 to this.
  absl::Duration jitter = absl::ZeroDuration();

  // Options of the job. If tune_fusion is set, the simulation tries fusion
  // thresholds, and the answer is that of the threshold with the shortest
  // iteration.
  JobOptions job;
  // True if programs wait for a layer when the next forward pass needs it;
  // false if they wait for all layers at the end of a step.
  bool waits_in_forward = true;
  // Time that each message between two nodes costs the sender, and again the
  // receiver. A message is one frame, or several fused frames.
  absl::Duration message_time = absl::ZeroDuration();
  // Time to copy all gradients to host memory and all parameters back. It gives
  // the rate of all copies. For a layer by factors, the worker's own factors
  // are copied out, and those of all other workers in. See SimulatedTrainer.
  absl::Duration host_copy = absl::ZeroDuration();

  // Delays of workers before each forward, by rank.
  std::map<int, absl::Duration> delays;
  // Delay of one worker in each step: worker s modulo `workers` in step s.
  absl::Duration delay_in_turn;

  // Number of iterations to measure, after one iteration that warms up. 0: as
  // many as a steady mean needs. That is one if all iterations are equal
  // (!varies()). Otherwise the simulation runs again with 8, 16, 32, ...
  // measured iterations, each time after as many that warm up. It stops when
  // the mean changes by half a per cent at most, or after a run with 128.
  int iterations = 0;
  // Seed of the jitter.
  uint64_t seed = 0;

  // True if a worker is delayed.
  bool is_delayed() const {
    return !delays.empty() || delay_in_turn > absl::ZeroDuration();
  }
  // True if iterations may differ from each other.
  bool varies() const { return is_delayed() || jitter > absl::ZeroDuration(); }

  // Returns OK, or kInvalidArgument with the field and its value.
  absl::Status Validate() const;
};

// Largest number of workers, and also of servers, in a simulation. The limit
// bounds memory: each pair of processes that exchange frames takes some.
inline constexpr int64_t kSimulatedNodesMax = 4096;

// Returns the options for MakePlan and Timeline.
// Errors: those of JobOptions::Validate.
absl::StatusOr<PlanOptions> PlanOptionsOf(const WhatIf& what_if);

// Answer to a WhatIf. An iteration ends when the last worker has the result of
// every layer. But if programs wait in forward passes, the next iteration has
// begun by then: there an iteration ends when the last worker has ended its
// backward.
struct IterationResult {
  // Plan of the job.
  Plan plan;
  // Fusion threshold: as asked for, or as tuned.
  int64_t fusion_bytes = kNoFusion;

  // Mean time of the measured iterations.
  absl::Duration iteration;
  // Number of measured iterations.
  int iterations = 0;
  // Time for which the busiest device computes in the last iteration:
  // single_node, and products of factors.
  absl::Duration compute;
  // Time of an iteration if one worker trains alone.
  absl::Duration single_node;
  // Throughput of all workers, relative to one worker alone.
  double speedup = 0.0;
  // Rest of the iteration, iteration - compute: network, copies that nothing
  // hides, delays.
  absl::Duration network_exposed;

  // Bytes that each node sends to other nodes and receives from them in the
  // last step, with headers.
  std::vector<int64_t> node_bytes;
  // Node with the most bytes.
  int busiest_node = 0;
  // Bytes of the busiest node by layer, with the block layer of a sparse job.
  // They add up to the bytes of that node.
  std::vector<int64_t> layer_bytes;

  // Number of events of the simulation.
  int64_t events = 0;
};

// Receives the share of the current simulation that is done, from 0 to 1. If
// one question takes several simulations, the share starts at 0 again for each.
using WhatIfProgress = std::function<void(double done)>;

// Runs the production machines of workers and shards over a modelled network.
// Payloads are sizes only. There is no membership: the epoch has begun, and
// every worker has the initial parameters. Equal questions give equal answers.
//
// Errors: kInvalidArgument, see Validate.
absl::StatusOr<IterationResult> SimulateIterations(
    const WhatIf& what_if, const WhatIfProgress& progress = nullptr);

}  // namespace nereus
