#ifndef NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_
#define NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/simulation/event_queue.h"
#include "common/simulation/simulated_network.h"
#include "server/coordinator.h"
#include "server/shard.h"
#include "worker/worker_machine.h"

namespace nereus {

// What the simulated workers compute. Functions of their arguments alone.
struct Workload {
  std::vector<LayerSpec> layers;

  // Writes a layer's initial parameters on worker `rank`; only worker 0's
  // count.
  std::function<void(int rank, int layer, absl::Span<float> parameters)>
      initialize;

  // One worker's gradient of one layer, from its parameters at that time.
  std::function<void(int rank, int64_t step, int layer,
                     absl::Span<const float> parameters,
                     absl::Span<float> gradient)>
      gradient;

  // The same for fully connected layers, as factors. Where it is absent,
  // `gradient` serves for all layers, and no layer can go by factors.
  std::function<void(
      int rank, int64_t step, int layer, absl::Span<const float> parameters,
      absl::Span<float> output_gradient, absl::Span<float> input)>
      factors;
};

struct SimulatedClusterOptions {
  uint64_t seed = 0;
  int workers = 2;
  int shards = 1;
  std::optional<Scheme> forced_scheme;
  JobOptions job;
  NetworkOptions network;

  // Backprop takes a time drawn evenly from [0, this] for each layer and
  // worker.
  absl::Duration layer_time_max = absl::Milliseconds(2);
};

// A whole job in one thread, on virtual time and an in-memory network: the
// coordinator, the shards and the workers are the production machines, only
// what drives them is not. The same options and workload give the same run,
// frame by frame.
//
// Each worker does what a trainer does: from the last layer to the first it
// computes a gradient and pushes it, waits until all layers are done, and
// starts over.
class SimulatedCluster {
 public:
  SimulatedCluster(const SimulatedClusterOptions& options, Workload workload);

  // Runs until every worker has done `steps` steps in all.
  // Errors: kDeadlineExceeded, nothing moves any more: names who waits for
  // what; kInternal, a machine refused a frame of another; kInvalidArgument, no
  // such job.
  absl::Status RunSteps(int64_t steps);

  // A worker's replica of a layer; with OptimizerPlace::kWorker, the mean
  // gradient of its last round.
  absl::Span<const float> parameters(int worker, int layer) const;
  absl::Span<const float> mean_gradient(int worker, int layer) const;

  const Job& job() const { return *coordinator_.job(); }
  const Shard& shard(int index) const { return *shards_[index]; }
  const EventQueue& events() const { return events_; }
  const SimulatedNetwork& network() const { return network_; }

  // Bytes that node i (worker i and shard i) exchanged with others, headers
  // included.
  const std::vector<int64_t>& node_bytes() const { return node_bytes_; }

 private:
  struct Worker {
    std::unique_ptr<WorkerMachine> machine;
    std::vector<Buffer> parameters;  // By layer.
    std::vector<Buffer> gradients;
    std::vector<Buffer> output_gradients;  // Fully connected layers.
    std::vector<Buffer> inputs;
    int64_t step = kInitialRound;  // The one under way.
    int layers_left = 0;           // Not yet done in this step.
  };

  void Join(Role role, int index);
  void Carry(CoordinatorOutbox& out);
  void Admit(const AdmitMember& admitted);
  void StartShard(int index);
  void StartWorker(int rank, int join_index);
  void Backward(int rank, int layer);
  void Push(int rank, int layer, Outbox& out);
  void OnLayerDone(int rank, const LayerDone& done);
  void StartStep(int rank);
  void Deliver(PeerId from, PeerId to, const Frame& frame);
  void Receive(PeerId from, PeerId to, const Frame& frame);
  void Execute(PeerId self, Outbox& out);
  void Transmit(PeerId from, PeerId to, const Frame& frame);
  Machine* FindMachine(PeerId peer);
  bool GaveFactors(int layer) const;
  std::string DescribeWaits() const;
  absl::Duration Draw(absl::Duration max) { return random_.Uniform() * max; }

  const SimulatedClusterOptions options_;
  const Workload workload_;

  EventQueue events_;
  Random random_;
  SimulatedNetwork network_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Shard>> shards_;  // Null before the job starts.
  std::vector<Worker> workers_;
  // Frames for members that have not heard yet that the job has started.
  struct EarlyFrame {
    PeerId from;
    PeerId to;
    Frame frame;
  };
  std::vector<EarlyFrame> early_frames_;
  std::vector<int64_t> node_bytes_;
  int64_t steps_wanted_ = 0;
  absl::Status failure_;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_
