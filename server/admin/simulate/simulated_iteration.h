#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/network/simulated_network.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/planner.h"
#include "server/admin/simulate/simulated_trainer.h"

namespace nereus {

// A cluster to ask "what would I get" of.
struct WhatIf {
  std::vector<LayerSpec> layers;
  std::vector<LayerTime> times;  // By layer.

  // Worker i and shard i share node i, and its network interface.
  PlanOptions plan;

  double node_rate = kUnlimitedRate;  // Bytes/s of each node, each way.
  absl::Duration latency = absl::ZeroDuration();
  absl::Duration jitter = absl::ZeroDuration();  // Up to this, evenly.

  // With tune_fusion the result is that of the best threshold.
  JobOptions job;
  // What each message costs a node's processor, when it leaves and when it
  // arrives.
  absl::Duration message_time = absl::ZeroDuration();
  // What copying all gradients to host memory and all parameters back takes;
  // layers by factors copy their factors instead, at the same rate. See
  // SimulatedTrainer.
  absl::Duration host_copy = absl::ZeroDuration();

  // Stragglers: what each iteration of a worker takes longer, before its
  // forward, by rank.
  std::map<int, absl::Duration> delays;
  // The same of one worker at a time: worker s modulo `workers` in step s.
  absl::Duration delay_in_turn;

  // That are measured, after one that is not. 0: one, or, where they may differ
  // from each other, twice as many as before, after as many that are not, until
  // that changes their mean by half a per cent at most, or there are 128.
  int iterations = 0;
  uint64_t seed = 0;  // Of the jitter.

  // Whether iterations may differ: a worker is late, or there is jitter.
  bool varies() const;

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// Workers, or servers, that can be simulated: each pair of processes that talk
// takes memory.
inline constexpr int64_t kSimulatedNodesMax = 4096;

// How MakePlan and Timeline see it.
// Errors: kInvalidArgument, the job's options do not go together.
absl::StatusOr<PlanOptions> PlanOptionsOf(const WhatIf& what_if);

// What one iteration came to. An iteration is over when its last worker has the
// outcome of every layer; with Overlap::kDecoupled the next one is under way by
// then, and what counts is the time from one backward's end to the next one's.
struct IterationResult {
  Plan plan;
  int64_t fusion_bytes = kNoFusion;  // As asked for, or as tuned.

  absl::Duration iteration;  // The mean of those that were measured,
  int iterations = 0;        // which were so many.
  // Of that, what the device of the worker that had most to do was computing:
  // what one node alone takes, and products of factors.
  absl::Duration compute;
  // What one node alone takes, with nobody to talk to.
  absl::Duration single_node;

  // Times the throughput of one node.
  double speedup = 0.0;
  // iteration - compute: for the network, copies that it did not hide, and
  // those who are delayed.
  absl::Duration network_exposed;

  // Sent plus received in frames per iteration, headers included: by node, and
  // of the node that moves most by layer, which add up to it.
  std::vector<int64_t> node_bytes;
  int busiest_node = 0;
  std::vector<int64_t> layer_bytes;

  int64_t events = 0;  // Of the simulation.
};

// Called now and then with the part of the run that is done, 0 to 1.
using WhatIfProgress = std::function<void(double done)>;

// Runs the production machines, shards and workers, over a modelled network,
// payloads being sizes only. Membership is not part of it: the epoch has begun,
// and every worker has the initial parameters. The same question gives the same
// answer.
//
// Errors: kInvalidArgument, see Validate.
absl::StatusOr<IterationResult> SimulateIterations(
    const WhatIf& what_if, const WhatIfProgress& progress = nullptr);

}  // namespace nereus
