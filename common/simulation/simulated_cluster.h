#ifndef NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_
#define NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/protocol/job.h"
#include "common/protocol/member.h"
#include "common/simulation/event_queue.h"
#include "common/simulation/simulated_network.h"
#include "common/simulation/simulated_storage.h"
#include "server/coordinator.h"
#include "server/shard.h"
#include "worker/worker_machine.h"

namespace nereus {

// The name of the job.
inline constexpr char kSimulatedJob[] = "simulated";

// What the simulated workers compute. Functions of their arguments alone.
struct Workload {
  std::vector<LayerSpec> layers;

  // Writes a layer's initial parameters on worker `rank`; only the first
  // worker's count.
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
  int min_workers = 1;
  int max_workers = 0;
  std::optional<Scheme> forced_scheme;
  JobOptions job;
  NetworkOptions network;
  absl::Duration lease = absl::Seconds(4);

  // Backprop takes a time drawn evenly from [0, this] for each layer and
  // worker.
  absl::Duration layer_time_max = absl::Milliseconds(2);

  // There is a disk that all servers share, for checkpoints. A file takes a
  // time drawn evenly from [0, disk_time_max].
  bool has_disk = false;
  SimulatedStorageOptions disk;
  absl::Duration disk_time_max = absl::Milliseconds(20);
  int checkpoints_kept = 2;
};

// A whole job in one thread, on virtual time and an in-memory network: the
// coordinator, the shards and the workers are the production machines, only
// what drives them is not. The same options, workload and faults give the same
// run, frame by frame.
//
// Each worker does what a trainer does: from the last layer to the first it
// computes a gradient and pushes it, waits until all layers are done, and
// starts over. Where the job's owner runs the optimizer, so does the worker,
// and a worker that joins is given its state.
//
// Faults are the caller's, between and during runs. Whatever they are, the
// outcome of each round is compared between all workers as soon as they have
// it (law 1).
class SimulatedCluster {
 public:
  SimulatedCluster(const SimulatedClusterOptions& options, Workload workload);
  ~SimulatedCluster();

  // Runs until every worker that lives has done `steps` steps in all.
  // Errors: kDeadlineExceeded, nothing moves any more, or not for `patience` of
  // virtual time: names who waits for what; kInternal, a machine refused a
  // frame of another, or two workers' outcomes differ; kInvalidArgument, no
  // such job; kAborted, the job failed.
  absl::Status RunSteps(int64_t steps);
  void set_patience(absl::Duration patience) { patience_ = patience; }

  // Faults, at once. Processes are numbered in the order of their start:
  // shards, then workers. A process is dead for ever; `StartWorker` starts
  // another, and returns its number.
  void Crash(ProcessId process);
  ProcessId StartWorker();
  // In the place of one that is dead.
  ProcessId StartShard(int shard);
  // The coordinator dies and, later, finds what it saved. With `halfway`, it
  // dies as soon as it has saved something, before it tells anybody.
  void CrashCoordinator(bool halfway = false);
  void RestartCoordinator();
  // Its process stands still for so long: what comes meanwhile waits.
  void PauseCoordinator(absl::Duration time) {
    coordinator_awake_ = events_.now() + time;
  }
  // A shard dies in the middle of the next file that it writes.
  void CrashInNextFile() { crash_in_next_file_ = true; }
  absl::Status RequestCheckpoint();
  void Pause(ProcessId process);
  void Resume(ProcessId process);
  void BreakConnection(ProcessId a, ProcessId b);
  void BreakSession(ProcessId process);
  // A worker leaves politely once it has done the step under way.
  void LeaveSoon(ProcessId process);

  // Runs `fault` at this time from the start of the run.
  void At(absl::Duration time, std::function<void()> fault);

  std::vector<ProcessId> live_workers() const;
  // The process that is this shard, or the last one that was.
  ProcessId shard_process(int shard) const;
  bool alive(ProcessId process) const;

  // A worker's replica of a layer, and the mean gradient of its last round.
  // `rank`: of a live worker.
  absl::Span<const float> parameters(int rank, int layer) const;
  absl::Span<const float> mean_gradient(int rank, int layer) const;

  // Runs for so long, whatever happens.
  void AdvanceBy(absl::Duration time);

  // Whether the job has.
  bool begun() const {
    return coordinator_ != nullptr ? coordinator_->job() != nullptr
                                   : saved_.has_value();
  }
  // The epoch's, as the coordinator has it, or had. REQUIRES: the job has
  // begun.
  const Job& job() const {
    return coordinator_ != nullptr ? *coordinator_->job() : *saved_->job;
  }
  // Null while it is dead.
  const Coordinator* coordinator() const { return coordinator_.get(); }
  SimulatedStorage& disk() { return disk_; }
  int64_t checkpoints_made() const { return checkpoints_made_; }
  const Shard& shard(int index) const;
  const EventQueue& events() const { return events_; }
  const SimulatedNetwork& network() const { return network_; }

  // Who contributed to the last round of a layer, for workloads that tell: set
  // by the test, called whenever a worker has the outcome of a round.
  using Outcome = std::function<void(int rank, int layer, int64_t round)>;
  void set_on_outcome(Outcome on_outcome) {
    on_outcome_ = std::move(on_outcome);
  }

  // Bytes that node i (worker of rank i and shard i) exchanged with others,
  // headers included.
  const std::vector<int64_t>& node_bytes() const { return node_bytes_; }

 private:
  struct Process;
  using Task = std::function<void()>;

  Process& Launch(Role role, int shard);
  // Runs `task` on the process after `delay`, if it lives then; when it is
  // awake again, if it is paused.
  void OnProcess(ProcessId process, absl::Duration delay, Task task);
  // The same, if it has not started afresh by then.
  void OnLife(Process& process, absl::Duration delay, Task task);
  void RunTask(ProcessId process, const Task& task);

  void OpenSession(ProcessId process);
  void ToCoordinator(ProcessId process, const MemberMessage& message);
  void Carry(const CoordinatorOutbox& out);
  void Tick();
  void Beat(ProcessId process);

  bool Connected(ProcessId a, ProcessId b) const;

  std::unique_ptr<Machine> MakeMachine(ProcessId process,
                                       const EpochStart& start, Outbox& out);
  std::unique_ptr<Machine> MakeWorker(Process& process, const EpochStart& start,
                                      Outbox& out);
  void Follow(Process& process, const EpochStart& start);
  bool Deliver(ProcessId from, ProcessId to, const Frame& frame);
  void Execute(Process& process, Outbox& out);
  void OnEnd(Process& process, const absl::Status& outcome);
  void ReplaceShard(int shard);
  void Transmit(Process& from, PeerId to, const Frame& frame);
  void Broadcast(Process& from, const Frame& frame);

  // Disks.
  void Save(Process& process, const SaveCheckpoint& save);
  void Load(Process& process, const LoadCheckpoint& load);
  void Complete(const CompleteCheckpoint& complete);
  uint64_t restarted_in() const;
  void CheckSaved(int layer, int64_t round);
  absl::Status CheckCheckpoint(int64_t round);
  void ForgetAfter(int64_t round);
  CoordinatorOptions CoordinatorOptionsOf() const;

  void TryStep(Process& process);
  void Backward(Process& process, int layer);
  void Push(Process& process, int layer, Outbox& out);
  void OnLayerDone(Process& process, const LayerDone& done);
  void CheckOutcome(const Process& process, const LayerDone& done);
  void Compare(const Process& process, int key, int64_t round, uint32_t sum);
  void OnStepDone(Process& process);
  void UpdateParameters(Process& process);
  bool GaveFactors(int layer) const;
  bool AllDone(int64_t steps) const;
  const Process* FindWorker(int rank) const;
  std::string DescribeWaits() const;
  absl::Duration Draw(absl::Duration max) { return random_.Uniform() * max; }

  const SimulatedClusterOptions options_;
  const Workload workload_;

  EventQueue events_;
  Random random_;
  SimulatedNetwork network_;
  std::unique_ptr<Coordinator> coordinator_;
  int coordinator_life_ = 0;
  absl::Time coordinator_awake_ = absl::InfinitePast();  // Not before.
  bool crash_at_save_ = false;
  std::optional<CoordinatorState> saved_;
  SimulatedStorage disk_;
  bool crash_in_next_file_ = false;
  int64_t checkpoints_made_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<SessionId, ProcessId> sessions_;
  SessionId next_session_ = 0;
  std::vector<int64_t> node_bytes_;
  int64_t steps_wanted_ = 0;
  absl::Duration patience_ = absl::Seconds(30);
  absl::Time progress_at_;  // A worker finished a step.
  // What a worker came to in a round of a layer.
  struct Recorded {
    ProcessId by = 0;
    uint32_t sum = 0;
  };
  std::map<std::pair<int, int64_t>, Recorded> outcomes_;
  // The same of what is in checkpoints, by layer and round.
  std::map<std::pair<int, int64_t>, uint32_t> saved_sums_;
  Outcome on_outcome_;
  absl::Status failure_;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_SIMULATION_SIMULATED_CLUSTER_H_
