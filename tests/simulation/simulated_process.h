#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/network/event_queue.h"
#include "common/network/simulated_network.h"
#include "common/protocol/member.h"
#include "common/protocol/pulse.h"
#include "server/shard/server_machine.h"
#include "tests/simulation/simulated_worker.h"

namespace nereus {

// Number that stands for the coordinator where a ProcessId says which side of a
// partition a process is on.
inline constexpr ProcessId kCoordinator = -1;

// A process of the simulated cluster: a worker, a server, or a stranger. It
// owns the production classes of its role (Member, WorkerMachine or
// ServerMachine) and stands in for the operating system around them: it may be
// dead, stopped, or stuck in its driver thread.
//
// A real process does its work on a driver thread. Here work is a Task, and Run
// is the only way in: a dead process drops the task, and a process that stands
// still keeps it for later. A component that called the machine directly would
// let a stopped process go on working, and no fault would ever bite.
class SimulatedProcess {
 public:
  using Task = std::function<void()>;

  // How a process stands still.
  enum class Halt {
    kNone,           // Runs.
    kDriverStalled,  // The driver stands still; the session still sends.
    kPaused,         // All threads stand still.
  };

  // `stranger`: the process has no place in the job and must be refused.
  SimulatedProcess(ProcessId number, JoinRequest request, bool stranger);

  // Runs `task` now, or at Resume if the process stands still. Drops it if the
  // process is dead.
  void Run(const Task& task);
  // Runs `task` after `delay`, in the way of Run.
  void RunAfter(EventQueue& events, absl::Duration delay, Task task);
  // Runs `task` after `delay`, unless the process has a new machine by then.
  void RunInLifeAfter(EventQueue& events, absl::Duration delay, Task task);

  // Ends the process for ever: its machine, its member and its tasks are gone.
  void Die();
  // Makes the process stand still, at least as `how` says.
  void Stop(Halt how);
  // Lets the process run again, and runs the tasks that it has kept.
  void Resume();

  // True if the process neither computes nor receives.
  bool is_halted() const { return halt != Halt::kNone; }
  // True if the process is a worker that the coordinator has admitted.
  bool is_admitted_worker() const;
  // The process's epoch; null before its first epoch, and after its death.
  const EpochStart* start() const;
  Role role() const { return request.role; }
  int shard() const { return request.shard; }

  const ProcessId id;         // Number of the process, never used twice.
  const JoinRequest request;  // Message by which the process joins.
  const bool stranger;        // The process must never be admitted.
  bool alive = true;          // False for ever once the process is dead.
  Halt halt = Halt::kNone;    // How the process stands still.
  bool failed = false;  // A check of values failed: it sends messages only.
  Pulse pulse;          // Decides whether the process may send heartbeats.
  int life = 0;         // Number of worker machines made so far.
  std::deque<Task> deferred;  // Tasks that wait for Resume.

  std::unique_ptr<Member> member;   // Null once the process is dead.
  ServerMachine* server = nullptr;  // Machine of a server; the member's.
  std::unique_ptr<SimulatedWorker> worker;  // Training loop; null in servers.

  // True while a worker is between two steps.
  bool idle = true;
  // Peer to which the connection breaks once a frame is sent there.
  std::optional<ProcessId> breaks_after_send;
  // That frame has been sent: the connection breaks after these actions.
  bool breaks_now = false;
};

// All processes that a simulated cluster ever had, by number: first the shards
// it began with, then the workers, then those started later.
class ProcessTable {
 public:
  // Number that the next process will have.
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
  // Returns the name of a process, as it said at joining.
  const std::string& name_of(ProcessId id) const {
    return all_[id]->request.name;
  }
  bool alive(ProcessId id) const { return all_[id]->alive; }

 private:
  std::vector<std::unique_ptr<SimulatedProcess>> all_;  // Index: number.
};

// Returns the process that `peer` is in the epoch of `start`. Data addresses of
// simulated processes are their numbers: "p7".
std::optional<ProcessId> FindProcess(const EpochStart& start, PeerId peer);

}  // namespace nereus
