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

// Computation of simulated workers. The result of each function follows from
// its arguments, so a step that is done again gives the same gradient.
struct Workload {
  // Layers of the model, in forward order.
  std::vector<LayerSpec> layers;

  // Writes the parameters with which worker `rank` joins. The job begins with
  // those of worker 0, and overwrites all others.
  std::function<void(int rank, int layer, absl::Span<float> parameters)>
      initialize;

  // Writes the gradient of one layer on one worker, computed from the worker's
  // current parameters.
  std::function<void(int rank, int64_t step, int layer,
                     absl::Span<const float> parameters,
                     absl::Span<float> gradient)>
      gradient;

  // Writes the gradient of a fully connected layer as two factors. If absent,
  // `gradient` is called for all layers, and no worker pushes factors.
  std::function<void(
      int rank, int64_t step, int layer, absl::Span<const float> parameters,
      absl::Span<float> output_gradient, absl::Span<float> input)>
      factors;

  // Returns true if the worker pushes the product of the factors of a layer,
  // and not the factors. If absent, it always pushes the factors.
  std::function<bool(int rank, int64_t step, int layer)> multiplies;

  // Returns what the worker's caller says of the rows of its layers' factors
  // when it has computed the gradients of `step` (FactorRows): the rows in
  // `layers`, 0 or -1. From a step with -1 on, it must return -1, and the
  // worker pushes the product. Workers join without the rows of the layers
  // about which worker 0 ever says something. If absent, workers know all rows,
  // and say nothing.
  std::function<std::vector<int64_t>(int rank, int64_t step)> reports;

  // Returns true if the worker pushes the product in this step because it has
  // no factors, or none for this step.
  bool PushesProduct(int rank, int64_t step, int layer) const {
    return (multiplies != nullptr && multiplies(rank, step, layer)) ||
           (reports != nullptr && reports(rank, step)[layer] < 0);
  }

  // Returns a value that the worker's gradient of `step` has in one layer, such
  // as a NaN; 0: it has none. `life` counts the machines of the worker, from 1.
  // If absent, no gradient has such a value.
  std::function<float(int rank, int64_t step, int life)> poisons;

  // True if gradients are those of SignedWorkload. CountedOnceLaw then checks
  // which workers contributed to a mean.
  bool is_signed = false;
};

// Hosts of a simulated job. The processes of a host share a node of the network
// and claim the same host when they join.
struct Places {
  NodeRate node_rate;  // Rate of each node.
  // Number of workers on each host at the start of the job. If empty, each
  // process has a node of its own and makes no host claim.
  std::vector<int> workers_on;
  // Host of the server of each shard. A server with -1, or without an entry,
  // has a host of its own.
  std::vector<int> server_hosts;
};

class SimulatedDevice;

// Simulated job: its members, its features, its network and its disk.
struct SimulatedClusterOptions {
  uint64_t seed = 0;  // Seed of all delays and of the faulty disk.
  // Clock that the job shares with other jobs. Null: it has its own.
  EventQueue* clock = nullptr;
  // Returns the device of the worker that is started as the n-th one, which it
  // shares with workers of other jobs; null: the worker has its own. If absent,
  // each worker has its own.
  std::function<SimulatedDevice*(int n)> device_of;
  double turn_weight = 1;  // Share of the job in shared devices.
  int workers = 2;         // Number of workers at the start of the job.
  // Number that the launcher gives each of these workers, in the order of their
  // start. If empty, it gives none.
  std::vector<int32_t> launch_ranks;
  int shards = 1;       // Number of servers, each the primary of one shard.
  int min_workers = 1;  // Least number of workers with which the job goes on.
  int max_workers = 0;  // Largest number of workers; 0 means `workers`.
  PlanRules rules;      // Rules by which the coordinator plans.
  JobOptions job;       // Features of the job.
  NetworkOptions network;
  Places places;  // Hosts of the members.
  absl::Duration lease = absl::Seconds(4);
  int join_share = 20;  // CoordinatorOptions::join_share.

  // True if the coordinator lives in the process of shard 0. It must then never
  // drop that process for a link that breaks again and again.
  bool coordinator_is_shard_0 = false;

  // Range of the time of one layer's computation. Each computation of each
  // worker takes a time drawn evenly from this range.
  absl::Duration layer_time_min;
  absl::Duration layer_time_max = absl::Milliseconds(2);

  // True if forward passes wait for each layer of the step before; false if the
  // workers wait for all layers at the end of a step.
  bool waits_in_forward = false;

  // True if the workers sample their replicas in each step (SampleSchedule),
  // and not about once a second, so that a short run has many samples.
  bool samples_each_step = false;

  // True if the test changes parameters behind the job's back. The laws about
  // parameters then do not hold, and are not checked.
  bool corrupts = false;

  // True if the workers gather values in every third step. Needs Quorum::kAll.
  bool gathers = false;

  // True if the servers share a disk, for checkpoints.
  bool has_disk = false;
  SimulatedStorageOptions disk;  // Faults of that disk.
  // Longest time to write one file. Each file takes a time drawn evenly from
  // [0, disk_time_max].
  absl::Duration disk_time_max = absl::Milliseconds(20);
  int checkpoints_kept = 2;  // Number of the newest checkpoints that are kept.
};

// Returns the id of the job that such a cluster runs.
inline uint64_t SimulatedJobId(const SimulatedClusterOptions& options) {
  return options.seed + 1;
}

}  // namespace nereus
