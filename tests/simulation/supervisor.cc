#include "tests/simulation/supervisor.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/compute/optimizer.h"
#include "tests/simulation/simulated_device.h"

namespace nereus {
namespace {

// Longest time between the start of a process and its first message.
constexpr absl::Duration kStartSpread = absl::Milliseconds(50);

// Time until another process is started in the place of a server.
constexpr absl::Duration kReplacementDelay = absl::Seconds(1);

}  // namespace

Supervisor::Supervisor(SimulatedWorld* world, SimulatedConnections* connections,
                       SimulatedSessions* sessions,
                       const SimulatedCoordinator* coordinator)
    : world_(world),
      connections_(connections),
      sessions_(sessions),
      coordinator_(coordinator) {}

// ---- Starts.

JoinRequest Supervisor::MakeRequest(Role role, int shard) const {
  const ProcessId id = world_->processes.next_id();
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = kSimulatedJob;
  request.role = role;
  request.shard = shard;
  request.incarnation = static_cast<uint64_t>(id) + 1;
  request.name = absl::StrCat("p", id);
  request.data_address = absl::StrCat("p", id);
  request.has_checkpoints = role == Role::kShard && world_->options.has_disk;
  if (role == Role::kWorker) {
    const std::vector<int32_t>& ranks = world_->options.launch_ranks;
    const size_t started = absl::c_count_if(
        world_->processes.all(),
        [](const auto& each) { return each->role() == Role::kWorker; });
    if (started < ranks.size()) request.launch_rank = ranks[started];
    request.layers = world_->workload.layers;
    if (world_->workload.reports != nullptr) {
      const auto last = world_->workload.reports(/*rank=*/0, kStepMax);
      for (size_t i = 0; i < last.size(); ++i) {
        if (last[i] != kRowsNotKnown) request.layers[i].rows = kRowsNotKnown;
      }
    }
    if (world_->options.device_of != nullptr) {
      const SimulatedDevice* const device = world_->options.device_of(started_);
      if (device != nullptr) {
        request.turn_base =
            LeastKey(device->Table()) * world_->options.turn_weight;
      }
    }
    request.caller.optimizer = world_->options.job.optimizer_place;
    request.caller.scales_loss = true;
    request.caller.state_arrays =
        OptimizerStateCount(world_->options.job.optimizer.rule);
  }
  return request;
}

ProcessId Supervisor::Launch(JoinRequest request, bool stranger) {
  world_->hosts.Settle(request);
  SimulatedProcess& process =
      world_->processes.Add(std::move(request), stranger);
  const ProcessId id = process.id;
  world_->Disturb();
  const NodeId node = world_->hosts.NodeOf(id);
  connections_->network().Place(id, node);
  connections_->network().SetRate(node, world_->options.places.node_rate);
  if (process.role() == Role::kWorker) {
    process.worker_number = started_++;
    process.worker = std::make_unique<SimulatedWorker>(world_, &process);
  }
  process.member = std::make_unique<Member>(
      process.request, [this, &process](const EpochStart& start, Outbox& out) {
        return MakeMachine(process, start, out);
      });
  process.RunAfter(world_->events, world_->Draw(kStartSpread),
                   [this, id] { sessions_->Open(id); });
  world_->events.After(kHeartbeatInterval, [this, id] { sessions_->Beat(id); });
  return id;
}

// Called by the member when it enters the first epoch of a machine.
std::unique_ptr<Machine> Supervisor::MakeMachine(SimulatedProcess& process,
                                                 const EpochStart& start,
                                                 Outbox& out) {
  world_->laws.Tell(Admitted{process.id, process.stranger});
  if (process.worker != nullptr) return process.worker->MakeMachine(start, out);
  auto server = std::make_unique<ServerMachine>(start.job, start.self.rank);
  process.server = server.get();
  server->Start(out);
  return server;
}

ProcessId Supervisor::StartWorker(const std::string& name) {
  JoinRequest request = MakeRequest(Role::kWorker, 0);
  if (!name.empty()) request.name = name;
  return Launch(std::move(request), /*stranger=*/false);
}

ProcessId Supervisor::StartShard(int shard) {
  return Launch(MakeRequest(Role::kShard, shard), /*stranger=*/false);
}

ProcessId Supervisor::StartStranger() {
  JoinRequest request = MakeRequest(Role::kWorker, 0);
  switch (world_->random.Below(5)) {
    case 0:
      ++request.protocol_version;
      break;
    case 1:
      request.job = "another";
      break;
    case 2:
      request.layers.back().name += "x";
      break;
    case 3:
      request.layers.pop_back();
      break;
    default:
      request.role = Role::kShard;
      request.shard = world_->options.shards;
      request.layers.clear();
      break;
  }
  return Launch(std::move(request), /*stranger=*/true);
}

// ---- Ends.

// Breaks the connections first, while the member still knows its peers.
void Supervisor::Kill(ProcessId id) {
  SimulatedProcess& victim = world_->processes[id];
  if (!victim.alive) return;
  world_->Disturb();
  victim.alive = false;
  connections_->BreakAll(id);
  sessions_->OnDeath(id);
  victim.Die();
}

// No death starts a process at once, so the table does not change in this loop.
void Supervisor::KillHost(int host) {
  for (const auto& process : world_->processes.all()) {
    if (world_->hosts.HostOf(process->id) == host) Kill(process->id);
  }
}

void Supervisor::OnEnd(SimulatedProcess& process, const absl::Status& outcome) {
  NoteOutcome(process, outcome);
  const bool is_coordinators = world_->options.coordinator_is_shard_0 &&
                               process.role() == Role::kShard &&
                               process.shard() == 0;
  world_->laws.Tell(
      MemberEnded{process.id, process.stranger, is_coordinators, outcome});
  // A worker that counted as dead comes again. A worker that left, or was never
  // admitted, does not.
  const bool comes_again = !outcome.ok() && process.is_admitted_worker();
  process.RunAfter(world_->events, absl::ZeroDuration(),
                   [this, &process, comes_again] {
                     Kill(process.id);
                     if (comes_again) StartWorker(process.request.name);
                     if (process.role() == Role::kShard && !process.stranger) {
                       StartShardSoon(process.shard());
                     }
                   });
}

void Supervisor::NoteOutcome(const SimulatedProcess& process,
                             const absl::Status& outcome) {
  const Coordinator* const coordinator = coordinator_->get();
  if (coordinator == nullptr) return;
  if (coordinator->over() && coordinator->state() != JobState::kFinished) {
    world_->laws.EndRun(AbortedError(coordinator->reason()));
  } else if (coordinator->state() == JobState::kWaiting && !process.stranger) {
    world_->laws.EndRun(outcome);
  }
}

void Supervisor::ReplaceShard(SimulatedProcess& server) {
  Kill(server.id);
  StartShardSoon(server.shard());
}

// Starts no server if a test has started one meanwhile.
void Supervisor::StartShardSoon(int shard) {
  world_->events.After(kReplacementDelay, [this, shard] {
    const ProcessTable& processes = world_->processes;
    if (!processes.alive(processes.shard_process(shard))) StartShard(shard);
  });
}

}  // namespace nereus
