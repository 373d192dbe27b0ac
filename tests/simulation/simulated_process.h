#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/driver/machine_driver.h"
#include "common/network/event_queue.h"
#include "common/network/simulated_network.h"
#include "common/protocol/member.h"
#include "server/shard/server_machine.h"
#include "tests/simulation/simulated_worker.h"

namespace nereus {

// Number of the coordinator among the processes of a partition. The coordinator
// is always on the near side.
inline constexpr ProcessId kCoordinator = -1;

// Process of the simulated cluster: a worker, a server, or a stranger. It owns
// the production classes of its role (Member, WorkerMachine or ServerMachine).
// Like an operating system, it may end, pause, or hold up its driver thread.
//
// A real process works on a driver thread. Here each piece of work is a Task,
// and Run is the only way to have one done. A dead process drops tasks, and a
// process that stands still keeps them for later. Code that called the machine
// directly would let a paused process go on working, so the fault would have no
// effect.
class SimulatedProcess {
 public:
  using Task = std::function<void()>;

  // State of the process's threads, ordered from the least halt to the most.
  enum class Halt {
    kNone,           // All threads run.
    kReading,        // The driver reads a checkpoint; the session says so.
    kDriverStalled,  // The driver stands still; the session still sends.
    kPaused,         // All threads stand still.
  };

  // `stranger`: True if the process has no place in the job and must be
  // refused.
  SimulatedProcess(ProcessId number, JoinRequest request, bool stranger);

  // Runs `task` now, or at Resume if the process stands still. Drops it if the
  // process is dead.
  void Run(const Task& task);
  // Calls Run with `task` after `delay`.
  void RunAfter(EventQueue& events, absl::Duration delay, Task task);
  // Calls Run with `task` after `delay`. Drops the task if the worker has begun
  // its next life by the time at which the task would run.
  void RunInLifeAfter(EventQueue& events, absl::Duration delay, Task task);

  // Ends the process for ever: its machine, its member and its tasks are gone.
  void Die();
  // Halts the process as `how` says. A process with more of a halt keeps that.
  void Stop(Halt how);
  // Lets the process go on, and runs the tasks that it has kept.
  void Resume();

  // True if the process neither computes nor receives frames.
  bool is_halted() const { return halt != Halt::kNone; }
  // True if the process is a worker that the coordinator has admitted.
  bool is_admitted_worker() const;
  // The process's epoch; null before its first epoch, and after its death.
  const EpochStart* start() const;
  Role role() const { return request.role; }
  int shard() const { return request.shard; }

  const ProcessId id;         // Number of the process, never used twice.
  const JoinRequest request;  // Message by which the process joins.
  const bool stranger;        // True if the job must refuse the process.
  bool alive = true;          // False for ever once the process is dead.
  Halt halt = Halt::kNone;    // See Stop.
  // Time of the last Resume.
  absl::Time resumed_at = absl::InfinitePast();
  // True if the process has found a NaN or an infinity. It then only sends
  // messages to the coordinator.
  bool failed = false;
  // True from the time at which a server could not load a damaged checkpoint
  // until the job goes back. Meanwhile the server sends messages to the
  // coordinator only.
  bool lacks_values = false;
  Pulse pulse;   // Decides whether the process may send heartbeats.
  int life = 0;  // Number of worker machines made so far.
  // Number of workers that were started before this one.
  int worker_number = 0;
  std::deque<Task> deferred;  // Tasks that wait for Resume.

  std::unique_ptr<Member> member;   // Null once the process is dead.
  ServerMachine* server = nullptr;  // Machine of a server. The member owns it.
  std::unique_ptr<SimulatedWorker> worker;  // Training loop; null in servers.

  // True while a worker is between two steps.
  bool idle = true;
  // Peer of a connection that breaks after the next frame to that peer.
  std::optional<ProcessId> breaks_after_send;
  // True if that frame has been sent. The connection breaks when the driver has
  // carried out the other actions of the same outbox.
  bool breaks_now = false;
};

// Processes of a simulated cluster by number, dead ones included: first the
// shards with which it began, then the workers, then processes that were
// started later.
class ProcessTable {
 public:
  // Returns the number of the next process.
  ProcessId next_id() const { return static_cast<ProcessId>(all_.size()); }
  // Adds a process, with number next_id().
  SimulatedProcess& Add(JoinRequest request, bool stranger);

  SimulatedProcess& operator[](ProcessId id) const { return *all_[id]; }
  const std::vector<std::unique_ptr<SimulatedProcess>>& all() const {
    return all_;
  }

  // Returns the workers that live and have not left, by number.
  std::vector<ProcessId> live_workers() const;
  // Returns the newest process of shard `shard`, dead or alive.
  ProcessId shard_process(int shard) const;
  // Returns the live worker of rank `rank`. REQUIRES: there is one.
  const SimulatedProcess& worker(int rank) const;
  // Returns the name with which a process joins.
  const std::string& name_of(ProcessId id) const {
    return all_[id]->request.name;
  }
  bool alive(ProcessId id) const { return all_[id]->alive; }

 private:
  std::vector<std::unique_ptr<SimulatedProcess>> all_;  // Index: number.
};

// Returns the process of member `peer` in the epoch of `start`; nothing if
// there is no such member. The data address of process 7 is "p7".
std::optional<ProcessId> FindProcess(const EpochStart& start, PeerId peer);

}  // namespace nereus
