#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "tests/simulation/fault_script.h"
#include "tests/simulation/job_progress.h"
#include "tests/simulation/laws/law_checker.h"
#include "tests/simulation/simulated_connections.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_disk.h"
#include "tests/simulation/simulated_hosts.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_process.h"
#include "tests/simulation/simulated_sessions.h"
#include "tests/simulation/simulated_world.h"
#include "tests/simulation/simulation_options.h"
#include "tests/simulation/supervisor.h"

namespace nereus {

// Whole job in one thread, on virtual time: the driver of a deterministic
// simulation.
//
// A distributed job is hard to test, because threads, networks and disks decide
// the order of its events. Nereus keeps them out of its protocol: coordinator,
// servers and workers are pure state machines, which take an event and return
// actions. This class carries the actions out. It replaces each source of
// chance by numbers drawn from one seed:
//
//   time          EventQueue: the clock jumps to the next event
//   network       SimulatedConnections: each frame takes a drawn delay
//   sessions      SimulatedSessions: each message takes a drawn delay
//   computation   SimulatedWorker: each layer takes a drawn time
//   disk          SimulatedDisk: each file takes a drawn time, and may fail
//   failures      FaultScript: written by a test, or drawn by RandomFaults
//
// Equal options, workloads and scripts then give equal runs, event by event. So
// the seed of a rare failure replays it under a debugger, as often as needed. A
// test runs hundreds of seeds, each with another order of events.
//
// A drawn run has no expected output. Instead, laws (tests/simulation/laws)
// check every event. A law is a statement that is true of every run, such as
// "after a round all workers have the same bits".
//
//   SimulatedCluster cluster(options, RandomWorkload(MixedLayers(), seed));
//   cluster.faults().At(absl::Seconds(2),
//                       [&] { cluster.faults().Crash(worker); });
//   const absl::Status status = cluster.RunSteps(10);
//   ASSERT_TRUE(status.ok()) << status;
//
// For one thread. Nothing in it reads a real clock, a socket or a file.
class SimulatedCluster {
 public:
  SimulatedCluster(const SimulatedClusterOptions& options, Workload workload);

  // Runs until every live worker has done `steps` steps, counted from the
  // beginning of the job.
  //
  // Errors: kDeadlineExceeded, no step ends any more; the message says what
  // each worker waits for, and the test may continue the run. kInternal, a law
  // is broken. kAborted, the job failed. Or the error with which the
  // coordinator refused a process before the job began.
  absl::Status RunSteps(int64_t steps);
  // RunSteps in parts, for a test that runs several clusters on one clock.
  // WantSteps sets the number of steps, and idle workers begin. Then the test
  // runs events (RunNext) until HasDoneAll, or until Check returns an error.
  void WantSteps(int64_t steps);
  bool RunNext() { return world_.RunNext(); }
  bool HasDoneAll() const { return progress_.HasDoneAll(); }
  absl::Status Check() const;
  // Runs for `time`, or until a law is broken or the job fails.
  void AdvanceBy(absl::Duration time);
  // Lets all workers leave, and runs until the job ends. Errors: those of
  // RunSteps; also kInternal if the last step could be saved and is not.
  absl::Status Finish();
  // Sets the longest time that RunSteps waits for progress, and that Finish
  // waits for the end of the job.
  void set_patience(absl::Duration patience);

  FaultScript& faults() { return faults_; }
  LawChecker& laws() { return world_.laws; }
  SimulatedDisk& disk() { return disk_; }

  const SimulatedClusterOptions& options() const { return world_.options; }
  const ProcessTable& processes() const { return world_.processes; }
  const SimulatedHosts& hosts() const { return world_.hosts; }
  const EventQueue& events() const { return world_.events; }
  const SimulatedConnections& connections() const { return connections_; }

  // Returns the coordinator; null while it is dead.
  const Coordinator* coordinator() const { return coordinator_.get(); }
  // True if the job has begun.
  bool begun() const { return coordinator_.has_begun(); }
  // Returns the job as of the coordinator's epoch. While the coordinator is
  // dead, this is the job that it saved last. REQUIRES: the job has begun.
  const Job& job() const { return coordinator_.job(); }
  // Returns the live worker of rank `rank`. REQUIRES: there is one.
  const SimulatedWorker& worker(int rank) const {
    return *world_.processes.worker(rank).worker;
  }
  // Returns a shard on its primary.
  const Shard& shard(int index) const;
  // Returns the workers that live and have not left.
  std::vector<ProcessId> live_workers() const {
    return world_.processes.live_workers();
  }

  // Returns a digest of all events with their times, and of all messages and
  // frames. Equal runs have equal digests.
  uint64_t digest() const;

 private:
  using Process = SimulatedProcess;

  // Answers the laws' questions.
  class View final : public ClusterView {
   public:
    explicit View(const SimulatedCluster* cluster) : cluster_(cluster) {}
    absl::Time now() const override { return cluster_->events().now(); }
    const Job& job() const override { return cluster_->job(); }
    bool Counts(ProcessId worker) const override;

   private:
    const SimulatedCluster* const cluster_;
  };

  // Carries out the actions of a process's machine, in order.
  void Execute(Process& process, Outbox& out);
  // Functions for one kind of action each. OnLife runs a task later, if the
  // process has the same machine then. Follow enters an epoch. Fail makes a
  // process fail that found a NaN or an infinity.
  void ToCoordinator(ProcessId process, const MemberMessage& message);
  void OnEnd(Process& process, const absl::Status& outcome);
  void Transmit(Process& from, PeerId to, const Frame& frame);
  void Broadcast(Process& from, const BroadcastFrame& broadcast);
  void OnLife(Process& process, absl::Duration delay, Process::Task task);
  void OnLayerDone(Process& process, const LayerDone& done);
  void Fail(Process& process, const ValueCheck& check, const BadValue& found);
  void Follow(Process& process, const EpochStart& start);
  void Save(Process& process, const SaveCheckpoint& save);
  void Load(Process& process, const LoadCheckpoint& load, Outbox rest);
  void TryStep(Process& process);
  void BreakConnection(ProcessId a, ProcessId b);

  View view_;             // The laws' view of the cluster.
  SimulatedWorld world_;  // Time, chance, processes and laws.
  SimulatedPartition partition_;
  SimulatedConnections connections_;
  SimulatedDisk disk_;
  SimulatedCoordinator coordinator_;
  SimulatedSessions sessions_;
  Supervisor supervisor_;
  JobProgress progress_;
  FaultScript faults_;
  absl::Duration patience_ = absl::Seconds(30);  // See set_patience.
};

}  // namespace nereus
