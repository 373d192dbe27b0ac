#include "tests/simulation/simulated_cluster.h"

#include <utility>
#include <variant>

#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/driver/arithmetic.h"
#include "common/protocol/action_visitor.h"
#include "tests/simulation/laws/bounded_wait_law.h"

// The constructor connects the parts and starts the first processes. From then
// on RunSteps, AdvanceBy and Finish run one event after the other. In an event,
// a machine may append actions; Execute hands each action to the part that
// carries it out.

namespace nereus {
namespace {

uint32_t Checksum(const Buffer& buffer) {
  return Crc32c(buffer.data(), static_cast<size_t>(buffer.bytes()));
}

// Returns the host claims of an epoch's members, in their order.
std::vector<HostClaim> ClaimsOf(const ProcessTable& processes,
                                const EpochStart& start) {
  std::vector<HostClaim> claims;
  for (const EpochMember& each : start.epoch_members) {
    const auto process = FindProcess(start, each.id);
    NEREUS_CHECK(process.has_value()) << each.data_address;
    claims.push_back(processes[*process].request.host);
  }
  return claims;
}

// Returns the members of an epoch that could not connect to a mate.
std::set<PeerId> MembersApart(const SimulatedConnections& connections,
                              const EpochStart& start) {
  std::set<PeerId> apart;
  for (const EpochMember& each : start.epoch_members) {
    if (connections.WasApart(*FindProcess(start, each.id))) {
      apart.insert(each.id);
    }
  }
  return apart;
}

}  // namespace

SimulatedCluster::SimulatedCluster(const SimulatedClusterOptions& options,
                                   Workload workload)
    : view_(this),
      world_(options, std::move(workload), &view_,
             [this](Process& process, Outbox& out) { Execute(process, out); }),
      connections_(world_.random.Next(), &world_, &partition_),
      disk_(world_.random.Next(), &world_,
            {[this](Process& process) { supervisor_.ReplaceShard(process); },
             [this](Process& process) { faults_.Resume(process.id); }}),
      coordinator_(&world_, &disk_,
                   {[this](const CoordinatorAction& action) {
                      sessions_.CarryOut(action);
                    },
                    [this] { sessions_.OnCoordinatorDeath(); },
                    [this] { return progress_.MayStandStill(); }}),
      sessions_(&world_, &partition_, &coordinator_, &connections_),
      supervisor_(&world_, &connections_, &sessions_, &coordinator_),
      progress_(&world_, &partition_, &coordinator_),
      faults_({&world_, &partition_, &connections_, &sessions_, &coordinator_,
               &disk_, &supervisor_}) {
  for (int shard = 0; shard < options.shards; ++shard) {
    supervisor_.StartShard(shard);
  }
  for (int worker = 0; worker < options.workers; ++worker) {
    supervisor_.StartWorker();
  }
  coordinator_.Start();
}

// ---- Runs.

// Idle workers have done all steps of the run before; they begin the next one
// here. The other workers go on by themselves.
void SimulatedCluster::WantSteps(int64_t steps) {
  world_.steps_wanted = steps;
  world_.laws.Tell(RunBegins{});
  for (const ProcessId id : live_workers()) {
    Process& process = world_.processes[id];
    if (process.idle && process.is_admitted_worker() && !process.is_halted()) {
      TryStep(process);
    }
  }
}

absl::Status SimulatedCluster::Check() const {
  NEREUS_TRY(world_.laws.status());
  const absl::Status in_time = world_.laws.CheckTime();
  if (in_time.ok()) return in_time;
  return absl::Status(in_time.code(), absl::StrCat(in_time.message(), "; ",
                                                   progress_.DescribeWaits()));
}

absl::Status SimulatedCluster::RunSteps(int64_t steps) {
  WantSteps(steps);
  NEREUS_TRY(world_.laws.status());
  while (!HasDoneAll()) {
    if (!world_.RunNext()) {
      return DeadlineExceededError("nothing moves any more; ",
                                   progress_.DescribeWaits());
    }
    NEREUS_TRY(Check());
  }
  return world_.laws.status();
}

void SimulatedCluster::AdvanceBy(absl::Duration time) {
  const absl::Time end = world_.events.now() + time;
  bool is_over = false;
  world_.events.At(end, [&is_over] { is_over = true; });
  while (!is_over && world_.laws.status().ok()) world_.RunNext();
}

absl::Status SimulatedCluster::Finish() {
  world_.last_step = kInitialRound;
  for (const ProcessId id : live_workers()) faults_.LeaveSoon(id);
  const absl::Time limit = world_.events.now() + patience_;
  while (world_.laws.status().ok() &&
         (coordinator() == nullptr || !coordinator()->over())) {
    if (!world_.RunNext() || world_.events.now() > limit) {
      return DeadlineExceededError("the job does not end; ",
                                   progress_.DescribeWaits());
    }
  }
  if (world_.laws.status().ok() &&
      coordinator()->state() == JobState::kFinished) {
    const bool may_be_unsaved =
        !options().has_disk || options().disk.failure_probability > 0 ||
        coordinator()->checkpoints().HasFailed(world_.last_step) ||
        coordinator()->epochs().Has(ChangeReason::kShardLost);
    world_.laws.Tell(
        JobEnded{world_.last_step, disk_.newest_round(), may_be_unsaved});
  }
  return world_.laws.status();
}

void SimulatedCluster::set_patience(absl::Duration patience) {
  patience_ = patience;
  world_.laws.Find<BoundedWaitLaw>()->set_patience(patience);
}

// ---- Actions.

void SimulatedCluster::Execute(Process& process, Outbox& out) {
  bool entered = false;
  const ActionVisitor carry_out{
      [&](const SendMessage& send) { ToCoordinator(process.id, send.message); },
      [&](const SendHeartbeat&) { sessions_.SendHeartbeatOf(process.id); },
      [&](const EndMembership& end) { OnEnd(process, end.outcome); },
      [&](const CheckingAction auto& checking) {
        const BadValue found = ExecuteArithmetic(checking);
        if (found.index >= 0) Fail(process, CheckOf(checking), found);
      },
      [](const ArithmeticAction auto& action) { ExecuteArithmetic(action); },
      [&](const SendFrame& send) { Transmit(process, send.to, send.frame); },
      [&](const BroadcastFrame& all) { Broadcast(process, all); },
      [&](const LayerDone& done) {
        OnLife(process, absl::ZeroDuration(),
               [this, &process, done] { OnLayerDone(process, done); });
      },
      [&](const ChecksumValues& sum) {
        Outbox more;
        const uint32_t crc = sum.sampled.has_value()
                                 ? SampleChecksum(sum.values, *sum.sampled)
                                 : Checksum(sum.values);
        process.member->OnChecksum(sum, crc, more);
        Execute(process, more);
      },
      [&](const FollowEpoch& follow) {
        Follow(process, *follow.start);
        entered = true;
      },
      [&](const SaveCheckpoint& save) { Save(process, save); },
      [](const LoadCheckpoint&) {},  // See below.
      [](const PartDone&) {},        // No layer is on a device here.
      [](const ProbeAnswered&) {},   // No worker sends probes here.
  };
  const Action* const end = out.actions().data() + out.actions().size();
  for (const Action& action : out.actions()) {
    const auto* const follow = std::get_if<FollowEpoch>(&action);
    if (follow != nullptr && std::exchange(process.lacks_values, false) &&
        !follow->start->from_base) {
      OnEnd(process, InternalError("a server without values is in an epoch"));
    }
    const bool is_mute = process.failed || process.lacks_values;
    if (const auto* load = std::get_if<LoadCheckpoint>(&action);
        load != nullptr && !is_mute) {
      Outbox rest;
      for (const Action* next = &action + 1; next != end; ++next) {
        rest.Add(*next);
      }
      return Load(process, *load, std::move(rest));
    }
    if (!is_mute || IsMessage(action)) std::visit(carry_out, action);
  }
  if (entered && process.idle && process.worker != nullptr) TryStep(process);
  if (process.breaks_now) {
    process.breaks_now = false;
    BreakConnection(process.id, *std::exchange(process.breaks_after_send, {}));
  }
}

void SimulatedCluster::ToCoordinator(ProcessId process,
                                     const MemberMessage& message) {
  sessions_.ToCoordinator(process, message);
}

void SimulatedCluster::OnEnd(Process& process, const absl::Status& outcome) {
  supervisor_.OnEnd(process, outcome);
}

void SimulatedCluster::Transmit(Process& from, PeerId to, const Frame& frame) {
  connections_.Transmit(from, to, frame);
}

void SimulatedCluster::Broadcast(Process& from,
                                 const BroadcastFrame& broadcast) {
  for (const int32_t rank : *broadcast.to) {
    Transmit(from, PeerId::Worker(rank), broadcast.frame);
  }
}

void SimulatedCluster::OnLife(Process& process, absl::Duration delay,
                              Process::Task task) {
  process.RunInLifeAfter(world_.events, delay, std::move(task));
}

void SimulatedCluster::OnLayerDone(Process& process, const LayerDone& done) {
  process.worker->OnLayerDone(done);
}

void SimulatedCluster::Fail(Process& process, const ValueCheck& check,
                            const BadValue& found) {
  process.failed = true;
  Outbox last;
  process.member->OnBadValue(check, found, last);
  Execute(process, last);
}

void SimulatedCluster::Follow(Process& process, const EpochStart& start) {
  world_.laws.Tell(EpochEntered{process.id, &start,
                                ClaimsOf(world_.processes, start),
                                MembersApart(connections_, start)});
  connections_.Follow(process, start);
  if (process.worker != nullptr) process.worker->OnEntered(start.job);
}

void SimulatedCluster::Save(Process& process, const SaveCheckpoint& save) {
  disk_.Save(process, save);
}

void SimulatedCluster::Load(Process& process, const LoadCheckpoint& load,
                            Outbox rest) {
  disk_.Load(process, load, [this, &process, rest = std::move(rest)] {
    Outbox out = rest;
    Execute(process, out);
  });
}

void SimulatedCluster::TryStep(Process& process) { process.worker->TryStep(); }

void SimulatedCluster::BreakConnection(ProcessId a, ProcessId b) {
  connections_.Break(a, b);
}

// ---- State for tests and laws.

// A worker may go on for a while after the coordinator has given it up. A
// worker in an epoch before a restart has results that the job has taken back.
bool SimulatedCluster::View::Counts(ProcessId worker) const {
  const Process& process = cluster_->world_.processes[worker];
  return process.alive && job().PositionOf(process.worker->rank()) >= 0 &&
         process.start()->job->epoch >= cluster_->coordinator_.restarted_in();
}

const Shard& SimulatedCluster::shard(int index) const {
  const ProcessTable& processes = world_.processes;
  const ProcessId server =
      processes.shard_process(job().shard_servers[index].primary);
  return *processes[server].server->shard(index);
}

uint64_t SimulatedCluster::digest() const {
  return world_.digest ^ connections_.network().digest();
}

}  // namespace nereus
