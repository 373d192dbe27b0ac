#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/network/event_queue.h"
#include "common/network/simulated_network.h"
#include "common/protocol/job.h"
#include "common/protocol/member.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/save_first.h"
#include "server/shard/server_machine.h"
#include "tests/simulation/simulated_storage.h"
#include "worker/machine/worker_machine.h"

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

  // Whether a worker's gradients of a step have a NaN, with NanPolicy::kSkip.
  // `life`: how often its process has begun afresh, from 1. May be absent.
  std::function<bool(int rank, int64_t step, int life)> poisons;
};

struct SimulatedClusterOptions {
  uint64_t seed = 0;
  int workers = 2;
  int shards = 1;
  int min_workers = 1;
  int max_workers = 0;
  PlanRules rules;
  JobOptions job;
  NetworkOptions network;
  NodeRate node_rate;  // Each process runs on a node of its own.
  absl::Duration lease = absl::Seconds(4);
  // The coordinator is a part of shard 0's process, which is never to be the
  // one that has to go where a connection does not hold.
  bool coordinator_is_shard_0 = false;

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
// Faults are the caller's, between and during runs. Whatever they are, it is
// checked all the time that
// - the outcome of a round is the same for all workers that have it (law 1),
// - while a worker has something to do, and all that it needs are there, a step
//   ends within `wait_max` of the last one or of the last fault (law 4),
// - a checkpoint that is whole has what the workers had, and stays until there
//   is a newer one, and none whose manifest is torn counts as whole (law 7),
// - what a shard's copy has is what the shard has, and no worker is shown more
//   of a shard than its copy has,
// - what a shard holds is bounded by its chunks (law 6).
class SimulatedCluster {
 public:
  using Task = std::function<void()>;

  SimulatedCluster(const SimulatedClusterOptions& options, Workload workload);
  ~SimulatedCluster();

  // Runs until every worker that lives has done `steps` steps in all.
  // Errors: kDeadlineExceeded, nothing moves any more, or not for `patience` of
  // virtual time: names who waits for what; kInternal, a machine refused a
  // frame of another, or two workers' outcomes differ; kInvalidArgument, no
  // such job; kAborted, the job failed.
  absl::Status RunSteps(int64_t steps);
  void set_patience(absl::Duration patience) { patience_ = patience; }
  // Infinite: nobody looks.
  void set_wait_max(absl::Duration wait_max) { wait_max_ = wait_max; }

  // Faults, at once; a script calls them from At, or between runs. Processes
  // are numbered in the order of their start: shards, then workers. A process
  // is dead for ever; `StartWorker` starts another, and returns its number.
  void At(absl::Duration time, Task fault);  // From the start of the first run.
  void Crash(ProcessId process);
  // `name`: empty, one of its own; or that of a worker whose place it takes.
  ProcessId StartWorker(const std::string& name = "");
  const std::string& name_of(ProcessId worker) const;
  // One that has no business here: of another version, job or model, or a shard
  // too many. It is checked that it is told so, and never let in (law 5).
  ProcessId StartStranger();
  // In the place of one that is dead.
  ProcessId StartShard(int shard);
  void Pause(ProcessId process);
  void Resume(ProcessId process);
  // Its driver stands still, and its session goes on; until Resume.
  void StallDriver(ProcessId process);
  // It computes, sends and receives so many times slower; 1: as before.
  void SlowDown(ProcessId process, double factor);
  // A worker leaves politely once it has done the step under way.
  void LeaveSoon(ProcessId process);

  // The coordinator dies and, later, finds what it saved. With `halfway`, it
  // dies as soon as it has saved something, before it tells anybody.
  void CrashCoordinator(bool halfway = false);
  // Runs `fault` when the coordinator begins the next epoch.
  void AtNextEpoch(Task fault) { at_next_epoch_.push_back(std::move(fault)); }
  void RestartCoordinator();
  // Its process stands still for so long: what comes meanwhile waits.
  void PauseCoordinator(absl::Duration time) {
    coordinator_awake_ = events_.now() + time;
  }

  // For so long, no state of the coordinator can be saved.
  void FailSavesFor(absl::Duration time) {
    saves_fail_until_ = events_.now() + time;
  }

  // A shard dies in the middle of the next file that it writes.
  void CrashInNextFile() { crash_in_next_file_ = true; }
  // The coordinator dies in the middle of a manifest, when it has written so
  // many more.
  void CrashInManifest(int manifests) { manifests_to_crash_ = manifests; }
  absl::Status RequestCheckpoint();

  // What is under way between the two is lost, and both hear of it.
  void BreakConnection(ProcessId a, ProcessId b);
  // The same in the middle of a frame, after so many more have arrived whole.
  void BreakInFrame(ProcessId from, ProcessId to, int frames);
  // The same as soon as `from` has sent `to` something.
  void BreakAfterSend(ProcessId from, ProcessId to);
  void SetLink(ProcessId a, ProcessId b, const Link& link);

  // The session with the coordinator: what is under way is lost, and the two
  // ends hear of it after some time each.
  void BreakSession(ProcessId process);
  void BreakSession(ProcessId process, absl::Duration member,
                    absl::Duration coordinator);
  // The same when the coordinator has dealt with the next message, other than a
  // heartbeat, but before the answer is out.
  void LoseNextAnswer(ProcessId process);

  // Between these processes and all others, the coordinator among those,
  // nothing comes through until Heal; then it does, in order. BreakAcross:
  // connections and sessions do not wait for that.
  void Partition(std::set<ProcessId> far);
  void BreakAcross();
  void Heal();

  const SimulatedClusterOptions& options() const { return options_; }
  std::vector<ProcessId> live_workers() const;
  // The process that is this shard, or the last one that was.
  ProcessId shard_process(int shard) const;
  bool alive(ProcessId process) const;

  // A worker's replica of a layer, and the mean gradient of its last round.
  // `rank`: of a live worker.
  absl::Span<const float> parameters(int rank, int layer) const;
  absl::Span<const float> mean_gradient(int rank, int layer) const;
  const WorkerMachine& worker(int rank) const;

  // Runs for so long, whatever happens.
  void AdvanceBy(absl::Duration time);

  // All workers leave, and the job ends. Errors: those of RunSteps; kInternal,
  // there is a disk that does not fail, and the last step is not saved.
  absl::Status Finish();

  // Whether the job has.
  bool begun() const {
    return coordinator_ != nullptr ? coordinator_->job() != nullptr
                                   : saved_.has_value();
  }
  // The epoch's, as the coordinator has it, or had. REQUIRES: the job has
  // begun.
  const Job& job() const {
    return coordinator_ != nullptr ? *coordinator_->job() : *saved_->epoch.job;
  }
  // Null while it is dead.
  const Coordinator* coordinator() const { return coordinator_.get(); }
  SimulatedStorage& disk() { return disk_; }
  int64_t checkpoints_made() const { return checkpoints_made_; }
  const Shard& shard(int index) const;
  const EventQueue& events() const { return events_; }
  const SimulatedNetwork& network() const { return network_; }
  // Of all events, with their times, and of all that was said, frames included:
  // equal for equal runs.
  uint64_t digest() const { return digest_ ^ network_.digest(); }

  // Called whenever a worker has the outcome of a round, or its first values,
  // as of the round before its first one.
  using Outcome = std::function<void(int rank, int layer, int64_t round)>;
  void set_on_outcome(Outcome on_outcome) {
    on_outcome_ = std::move(on_outcome);
  }

  // Whether the workers have skipped a step that they have done.
  bool Skipped(int64_t step) const { return skipped_.at(step).skipped; }

  // Bytes that node i (worker of rank i and shard i) exchanged with others,
  // headers included.
  const std::vector<int64_t>& node_bytes() const { return node_bytes_; }

 private:
  struct Process;

  JoinRequest RequestOf(Role role, int shard) const;
  Process& Launch(JoinRequest request);
  // Runs `task` on the process after `delay`, if it lives then; when it is
  // awake again, if it is paused.
  void OnProcess(ProcessId process, absl::Duration delay, Task task);
  // The same, if it has not started afresh by then.
  void OnLife(Process& process, absl::Duration delay, Task task);
  void RunTask(ProcessId process, const Task& task);

  void OpenSession(ProcessId process);
  void ToCoordinator(ProcessId process, const MemberMessage& message);
  void Tell(SessionId session, const MemberMessage& message);
  void ToMember(ProcessId process, Task task);
  void Hear(ProcessId process, SessionId session,
            const CoordinatorMessage& message);
  void Carry(CoordinatorOutbox out);
  void CarryOut(const CoordinatorAction& action);
  void Keep(const CoordinatorState& state);
  void EndAtMember(ProcessId process, SessionId session);
  void EndAtCoordinator(SessionId session);
  void Tick();
  void Beat(ProcessId process);
  // What a worker says that it has measured: anything.
  Measured DrawMeasured();

  bool Connected(ProcessId a, ProcessId b) const;
  bool CutsHere(ProcessId from, ProcessId to);
  void LoseRestOfFrame(ProcessId from, ProcessId to, const Frame& frame,
                       const Buffer& place);
  bool Separated(ProcessId a, ProcessId b) const;
  // Runs `task` now, or when the partition between the two has ended.
  void WhenTogether(ProcessId a, ProcessId b, Task task);

  std::unique_ptr<Machine> MakeMachine(ProcessId process,
                                       const EpochStart& start, Outbox& out);
  std::unique_ptr<Machine> MakeWorker(Process& process, const EpochStart& start,
                                      Outbox& out);
  void Follow(Process& process, const EpochStart& start);
  bool Deliver(ProcessId from, ProcessId to, const Frame& frame);
  void Execute(Process& process, Outbox& out);
  void Fail(Process& process, const GradientCheck& check,
            const NotFinite& found);
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
  void CheckNewest();
  absl::Status CheckCheckpoint(int64_t round);
  void ForgetAfter(int64_t round);
  CoordinatorOptions CoordinatorOptionsOf() const;

  void TryStep(Process& process);
  void Backward(Process& process, int layer);
  // Of the next step, with Overlap::kDecoupled.
  void BeginForward(Process& process);
  void Forward(Process& process, int layer);
  void Push(Process& process, int layer, Outbox& out);
  void OnLayerDone(Process& process, const LayerDone& done);
  // For a new plan.
  void OnFetchedAgain(Process& process, const LayerDone& done);
  void CheckOutcome(const Process& process, const LayerDone& done);
  void CheckSkipped(Process& process, const LayerDone& done);
  void Compare(const Process& process, int key, int64_t round, uint32_t sum);
  void OnStepDone(Process& process);
  void UpdateParameters(Process& process);
  bool GaveFactors(int layer) const;
  bool HasDone(const Process& process, int64_t steps) const;
  bool AllDone(int64_t steps) const;
  // Whether it is right that no step ends.
  bool MustWait() const;
  absl::Status CheckWait() const;
  void CheckMemory(const Process& process);
  // A copy has said that it has a chunk.
  void CheckCopy(const Process& copy, const Process& server,
                 const FrameHeader& header);
  // A worker has been shown values of a chunk.
  void CheckShown(const Process& worker, const FrameHeader& header);
  bool RunNext();
  void Note(uint64_t what, uint64_t whose);
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
  absl::Time saves_fail_until_ = absl::InfinitePast();
  SaveFirst actions_;
  std::vector<Task> at_next_epoch_;
  std::optional<CoordinatorState> saved_;
  SimulatedStorage disk_;
  bool crash_in_next_file_ = false;
  std::optional<int> manifests_to_crash_;
  int64_t checkpoints_made_ = 0;
  absl::Time manifest_at_;  // The last one is written then; one at a time.
  int64_t newest_whole_ = kInitialRound;  // Of checkpoints.
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<SessionId, ProcessId> sessions_;  // Open for the coordinator.
  std::set<SessionId> cut_;  // Broken: nothing in them arrives any more.
  SessionId next_session_ = 0;
  std::set<ProcessId> far_;
  std::vector<Task> held_up_;  // Until the partition ends.
  // After how many frames a connection breaks in the next one.
  std::map<std::pair<ProcessId, ProcessId>, int> cut_in_frame_;
  std::vector<int64_t> node_bytes_;
  int64_t steps_wanted_ = 0;
  int64_t last_step_ = kInitialRound;  // The last that any worker left after.
  absl::Duration patience_ = absl::Seconds(30);
  absl::Duration wait_max_;
  absl::Time progress_at_;   // A worker finished a step.
  absl::Time disturbed_at_;  // The last fault, or what it stopped for.
  uint64_t digest_ = 0;
  // What a worker came to in a round of a layer.
  struct Recorded {
    ProcessId by = 0;
    uint32_t sum = 0;
    // That of a round, not of first values: where all start anew with what the
    // shards have, some chunks are a round ahead.
    bool exact = false;
  };
  std::map<std::pair<int, int64_t>, Recorded> outcomes_;
  // Whether a step is skipped, as a worker has heard.
  struct Heard {
    ProcessId by = 0;
    bool skipped = false;
  };
  std::map<int64_t, Heard> skipped_;  // By step.
  // The same of what is in checkpoints, by layer and round.
  std::map<std::pair<int, int64_t>, std::map<WireType, uint32_t>> saved_sums_;
  // Of all parameters that any worker came to, dead or alive: the same, with
  // what they travelled as.
  std::map<std::pair<int, int64_t>, std::set<std::pair<WireType, uint32_t>>>
      had_sums_;
  Outcome on_outcome_;
  absl::Status failure_;
};

}  // namespace nereus
