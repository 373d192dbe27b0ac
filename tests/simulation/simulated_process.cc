#include "tests/simulation/simulated_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/logging.h"

namespace nereus {

SimulatedProcess::SimulatedProcess(ProcessId number, JoinRequest joins,
                                   bool is_stranger)
    : id(number), request(std::move(joins)), stranger(is_stranger) {}

void SimulatedProcess::Run(const Task& task) {
  if (!alive) return;
  if (is_halted()) {
    deferred.push_back(task);
  } else {
    task();
  }
}

void SimulatedProcess::RunAfter(EventQueue& events, absl::Duration delay,
                                Task task) {
  events.After(delay, [this, task = std::move(task)] { Run(task); });
}

void SimulatedProcess::RunInLifeAfter(EventQueue& events, absl::Duration delay,
                                      Task task) {
  RunAfter(events, delay, [this, then = life, task = std::move(task)] {
    if (life == then) task();
  });
}

// The member owns the machine, so pointers to the machine are cleared first.
void SimulatedProcess::Die() {
  alive = false;
  server = nullptr;
  if (worker != nullptr) worker->OnDeath();
  member.reset();
  deferred.clear();
}

void SimulatedProcess::Stop(Halt how) { halt = std::max(halt, how); }

// Runs the kept tasks in their order. If a task halts or kills the process, Run
// keeps or drops the tasks after it.
void SimulatedProcess::Resume() {
  halt = Halt::kNone;
  for (const Task& task : std::exchange(deferred, {})) Run(task);
}

bool SimulatedProcess::is_admitted_worker() const {
  return worker != nullptr && worker->machine() != nullptr;
}

const EpochStart* SimulatedProcess::start() const {
  return member == nullptr ? nullptr : member->start();
}

SimulatedProcess& ProcessTable::Add(JoinRequest request, bool stranger) {
  all_.push_back(std::make_unique<SimulatedProcess>(
      next_id(), std::move(request), stranger));
  return *all_.back();
}

std::vector<ProcessId> ProcessTable::live_workers() const {
  std::vector<ProcessId> live;
  for (const auto& process : all_) {
    if (process->alive && process->role() == Role::kWorker &&
        !process->stranger && !process->worker->has_left()) {
      live.push_back(process->id);
    }
  }
  return live;
}

// Returns the last process of the shard: earlier ones are dead.
ProcessId ProcessTable::shard_process(int shard) const {
  ProcessId found = -1;
  for (const auto& process : all_) {
    if (process->role() == Role::kShard && process->shard() == shard &&
        !process->stranger) {
      found = process->id;
    }
  }
  return found;
}

const SimulatedProcess& ProcessTable::worker(int rank) const {
  for (const ProcessId id : live_workers()) {
    if (all_[id]->worker->rank() == rank) return *all_[id];
  }
  NEREUS_CHECK(false) << "no worker " << rank;
  return *all_.front();
}

std::optional<ProcessId> FindProcess(const EpochStart& start, PeerId peer) {
  for (const EpochMember& each : start.epoch_members) {
    ProcessId process = 0;
    if (each.id == peer &&
        absl::SimpleAtoi(each.data_address.substr(1), &process)) {
      return process;
    }
  }
  return std::nullopt;
}

}  // namespace nereus
