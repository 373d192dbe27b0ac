#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/network/simulated_network.h"
#include "common/protocol/job.h"
#include "server/coordinator/coordinator.h"
#include "tests/simulation/simulated_storage.h"

namespace nereus {

// Name of the job that every simulated cluster runs.
inline constexpr char kSimulatedJob[] = "simulated";

// The computation of simulated workers. Each function depends on its arguments
// alone, so that a step which is done again gives the same gradient again.
struct Workload {
  // Layers of the model, in forward order.
  std::vector<LayerSpec> layers;

  // Writes the parameters that worker `rank` brings along. The job begins with
  // those of the first worker; all others are overwritten.
  std::function<void(int rank, int layer, absl::Span<float> parameters)>
      initialize;

  // Writes the gradient of one layer on one worker, computed from the
  // parameters of that worker at that time.
  std::function<void(int rank, int64_t step, int layer,
                     absl::Span<const float> parameters,
                     absl::Span<float> gradient)>
      gradient;

  // Writes the gradient of a fully connected layer as two factors. If absent,
  // `gradient` serves all layers, and no layer can travel by factors.
  std::function<void(
      int rank, int64_t step, int layer, absl::Span<const float> parameters,
      absl::Span<float> output_gradient, absl::Span<float> input)>
      factors;

  // Returns true if the worker's gradient of `step` has a NaN in one layer.
  // `life` counts the machines of the worker, from 1. If absent, no gradient
  // has a NaN.
  std::function<bool(int rank, int64_t step, int life)> poisons;

  // True if gradients are those of SignedWorkload: a mean then tells which
  // workers contributed to it, and CountedOnceLaw checks every mean.
  bool is_signed = false;
};

// Hosts of a simulated job. The processes of a host share a node of the network
// and claim the same host when they join.
struct Places {
  NodeRate node_rate;  // Rate of each node.
  // Number of workers that the job begins with on each host. Empty: each
  // process has a node of its own, and claims no host.
  std::vector<int> workers_on;
  // Host of the server of each shard; -1, or none given: a host of its own.
  std::vector<int> server_hosts;
};

// A simulated job: its members, its features, its network and its disk.
struct SimulatedClusterOptions {
  uint64_t seed = 0;    // Seed of all delays and of the faulty disk.
  int workers = 2;      // Workers that the job begins with.
  int shards = 1;       // Servers, each the primary of one shard.
  int min_workers = 1;  // Fewest workers with which the job goes on.
  int max_workers = 0;  // Most workers; 0: those that it begins with.
  PlanRules rules;      // Rules by which the coordinator plans.
  JobOptions job;       // Features of the job.
  NetworkOptions network;
  Places places;  // Hosts of the members.
  absl::Duration lease = absl::Seconds(4);

  // True if the coordinator lives in the process of shard 0. The coordinator
  // must then never choose that process when a connection does not hold and one
  // of its two ends has to go.
  bool coordinator_is_shard_0 = false;

  // Longest time of one layer's backward pass. Each pass of each worker takes a
  // time drawn evenly from [0, layer_time_max].
  absl::Duration layer_time_max = absl::Milliseconds(2);

  // True if the servers share a disk, for checkpoints.
  bool has_disk = false;
  SimulatedStorageOptions disk;  // Faults of that disk.
  // Longest time to write one file, drawn evenly from [0, disk_time_max].
  absl::Duration disk_time_max = absl::Milliseconds(20);
  int checkpoints_kept = 2;  // Newest checkpoints that are not removed.
};

}  // namespace nereus
