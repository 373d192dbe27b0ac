#pragma once

#include <functional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/network/simulated_network.h"
#include "tests/simulation/simulated_connections.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_disk.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_sessions.h"
#include "tests/simulation/simulated_world.h"
#include "tests/simulation/supervisor.h"

namespace nereus {

// All that a test can do to a simulated cluster. A call does its harm at once;
// a script puts calls at moments of virtual time:
//
//   FaultScript& faults = cluster.faults();
//   faults.At(absl::Seconds(2), [&] { faults.Crash(worker); });
//   faults.At(absl::Seconds(4), [&] { faults.StartWorker(); });
//   EXPECT_TRUE(cluster.RunSteps(10).ok());
//
// Processes are numbered in the order of their start: first the shards, then
// the workers, then those that are started later. A process that is dead stays
// dead, and its number is not used again. RandomFaults draws a script from a
// seed.
//
// A fault never changes what the production code computes, only what it hears
// and when. Every call excuses the next wait of BoundedWaitLaw: without that,
// the law would blame the job for a pause that the test ordered.
class FaultScript {
 public:
  using Task = std::function<void()>;

  // Parts of the cluster that faults strike. No pointer is owned; all must
  // outlive the script.
  struct Targets {
    SimulatedWorld* world = nullptr;
    SimulatedPartition* partition = nullptr;
    SimulatedConnections* connections = nullptr;
    SimulatedSessions* sessions = nullptr;
    SimulatedCoordinator* coordinator = nullptr;
    SimulatedDisk* disk = nullptr;
    Supervisor* supervisor = nullptr;
  };
  explicit FaultScript(const Targets& targets) : at_(targets) {}

  // Runs `fault` at `time`, counted from the start of the cluster.
  void At(absl::Duration time, Task fault);
  // Runs `fault` after `delay` from now on.
  void After(absl::Duration delay, Task fault);
  // Runs `fault` when the coordinator has saved the beginning of an epoch.
  void AtNextEpoch(Task fault);

  // ---- Processes.

  // Kills a process.
  void Crash(ProcessId process) { at_.supervisor->Kill(process); }
  // Kills all processes of a host in one instant. `reboots`: the host comes
  // back with another kernel, so its next processes claim another host.
  void CrashHost(int host, bool reboots);
  // Starts a worker; `name`: the name of the worker that it replaces, or empty
  // for a name of its own. Returns the process, as all Start calls do.
  ProcessId StartWorker(const std::string& name = "") {
    return at_.supervisor->StartWorker(name);
  }
  // Starts a server in the place of a dead one.
  ProcessId StartShard(int shard) { return at_.supervisor->StartShard(shard); }
  // Starts a process without a place in the job. RefusalsLaw checks that it is
  // told so, and never admitted.
  ProcessId StartStranger() { return at_.supervisor->StartStranger(); }
  // Makes a process stand still until Resume.
  void Pause(ProcessId process);
  // Makes the driver of a process stand still until Resume, while its session
  // goes on.
  void StallDriver(ProcessId process);
  void Resume(ProcessId process);
  // Makes a process compute `factor` times slower, and its node send and
  // receive so; 1: as before.
  void SlowDown(ProcessId process, double factor);
  // Makes a worker leave once it has done the step under way. `early`:
  // Leave::early.
  void LeaveSoon(ProcessId process, bool early = false);
  // Lets a server ask to leave. Returns false, and does nothing, if it is no
  // member.
  bool AskToLeave(ProcessId server);

  // ---- Connections between members.

  // Breaks a connection: frames under way are lost, and both ends hear of it.
  void BreakConnection(ProcessId a, ProcessId b);
  // Lets a worker and the other workers of its host make no connection, until
  // the coordinator makes two hosts of them. Connections that are made already
  // stay.
  void MakeUnreachable(ProcessId process);
  // Breaks a connection in the middle of a frame, after `frames` more have
  // arrived whole.
  void BreakInFrame(ProcessId from, ProcessId to, int frames);
  // Breaks a connection as soon as `from` has sent a frame to `to`.
  void BreakAfterSend(ProcessId from, ProcessId to);
  // Lets no frame from `from` to `to` arrive until Mend, although both ends
  // still reach the coordinator.
  void Cut(ProcessId from, ProcessId to);
  // Ends Cut.
  void Mend(ProcessId from, ProcessId to);
  // Gives the link between the nodes of two processes another rate and delay.
  // Does nothing if they share a node.
  void SetLink(ProcessId a, ProcessId b, const Link& link);

  // ---- Sessions with the coordinator.

  // Breaks a session: messages under way are lost, and the two ends hear of it
  // after a time each.
  void BreakSession(ProcessId process);
  void BreakSession(ProcessId process, absl::Duration member,
                    absl::Duration coordinator);
  // Breaks a session when the coordinator has handled the next message other
  // than a heartbeat, before its answer is out.
  void LoseNextAnswer(ProcessId process);

  // ---- Partitions.

  // Lets nothing through between these processes and all others, the
  // coordinator included, until Heal; then all comes through, in order.
  void Partition(std::set<ProcessId> far);
  // Breaks the connections and sessions across the partition.
  void BreakAcross();
  void Heal();

  // ---- The coordinator.

  // Kills the coordinator.
  void CrashCoordinator();
  // Kills the coordinator as soon as it saves a state, before or after that is
  // on disk, and before any member is told.
  void CrashCoordinatorAtSave();
  // Starts the coordinator again, with the last state that it saved.
  void RestartCoordinator();
  // Makes the coordinator stand still for `time`: what comes meanwhile waits.
  void PauseCoordinator(absl::Duration time);
  // Lets no state of the coordinator be saved for `time`.
  void FailSavesFor(absl::Duration time);
  // Lets no save of a state end for `time`, nor a restarted coordinator read
  // it.
  void HangSavesFor(absl::Duration time);
  // Asks for a checkpoint, as an operator does. Errors: kUnavailable, the
  // coordinator is dead; those of Coordinator::RequestCheckpoint.
  absl::Status RequestCheckpoint();

  // ---- The disk.

  // Kills the next server that writes its share of a checkpoint, in the middle
  // of the file.
  void CrashInNextFile() { at_.disk->CrashInNextShare(); }
  // Kills the coordinator in the middle of a manifest, when it has written
  // `manifests` more.
  void CrashInManifest(int manifests) { at_.disk->CrashInManifest(manifests); }
  // Changes a byte of the newest whole checkpoint (SimulatedDisk::Rot).
  bool RotCheckpoint(uint64_t draw) { return at_.disk->Rot(draw); }
  // Lets no manifest be written for `time`.
  void HangManifestsFor(absl::Duration time);
  // Lets this process write no share of a checkpoint for `time`.
  void HangSharesFor(ProcessId id, absl::Duration time);
  // Makes reads take a while from now on (SimulatedDisk::SlowReads).
  void SlowReads(absl::Duration time_max) { at_.disk->SlowReads(time_max); }
  // Lets the next write fail with `status`.
  void FailNextWrite(absl::Status status);

 private:
  SimulatedProcess& process(ProcessId id) { return at_.world->processes[id]; }

  const Targets at_;
};

}  // namespace nereus
