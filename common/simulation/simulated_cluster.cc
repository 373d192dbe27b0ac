
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/compute/arithmetic.h"
#include "common/simulation/simulated_process.h"
#include "server/checkpoint_files.h"

namespace nereus {
namespace {

constexpr absl::Duration kStartSpread = absl::Milliseconds(50);
constexpr absl::Duration kTickInterval = absl::Milliseconds(200);
constexpr absl::Duration kReplacementDelay = absl::Seconds(1);
constexpr absl::Duration kSessionBackoff = absl::Milliseconds(100);

}  // namespace

CoordinatorOptions SimulatedCluster::CoordinatorOptionsOf() const {
  const SimulatedClusterOptions& options = options_;
  CoordinatorOptions made;
  made.job = kSimulatedJob;
  made.job_id = options.seed + 1;
  made.workers = options.workers;
  made.shards = options.shards;
  made.min_workers = options.min_workers;
  made.max_workers = options.max_workers;
  made.forced_scheme = options.forced_scheme;
  made.job_options = options.job;
  made.lease = options.lease;
  made.has_checkpoints = options.has_disk;
  return made;
}

SimulatedCluster::SimulatedCluster(const SimulatedClusterOptions& options,
                                   Workload workload)
    : options_(options),
      workload_(std::move(workload)),
      random_(options.seed),
      network_(options.network, random_.Next(), &events_,
               [this](ProcessId from, ProcessId to, const Frame& frame) {
                 return Deliver(from, to, frame);
               }),
      coordinator_(std::make_unique<Coordinator>(CoordinatorOptionsOf())),
      disk_(random_.Next(), options.disk),
      node_bytes_(std::max(options.workers, options.shards), 0),
      progress_at_(events_.now()) {
  for (int shard = 0; shard < options.shards; ++shard) {
    Launch(Role::kShard, shard);
  }
  for (int worker = 0; worker < options.workers; ++worker) {
    Launch(Role::kWorker, 0);
  }
  events_.After(kTickInterval, [this] { Tick(); });
}

SimulatedCluster::~SimulatedCluster() = default;

SimulatedCluster::Process& SimulatedCluster::Launch(Role role, int shard) {
  const auto id = static_cast<ProcessId>(processes_.size());
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.id = id;
  process.role = role;
  process.index = shard;
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = kSimulatedJob;
  request.role = role;
  request.shard = shard;
  request.incarnation = static_cast<uint64_t>(id) + 1;
  request.name = absl::StrCat("p", id);
  request.data_address = request.name;
  request.has_checkpoints = role == Role::kShard && options_.has_disk;
  if (role == Role::kWorker) {
    request.layers = workload_.layers;
    request.state_arrays = OptimizerStateCount(options_.job.optimizer.rule);
  }
  process.member = std::make_unique<Member>(
      std::move(request), [this, id](const EpochStart& start, Outbox& out) {
        return MakeMachine(id, start, out);
      });
  OnProcess(id, Draw(kStartSpread), [this, id] { OpenSession(id); });
  OnProcess(id, kHeartbeatInterval, [this, id] { Beat(id); });
  return process;
}

ProcessId SimulatedCluster::StartWorker() {
  return Launch(Role::kWorker, 0).id;
}

ProcessId SimulatedCluster::StartShard(int shard) {
  return Launch(Role::kShard, shard).id;
}

ProcessId SimulatedCluster::shard_process(int shard) const {
  ProcessId found = -1;
  for (const auto& process : processes_) {
    if (process->role == Role::kShard && process->index == shard) {
      found = process->id;
    }
  }
  return found;
}

bool SimulatedCluster::alive(ProcessId process) const {
  return processes_[process]->alive;
}

// Tasks, sessions and time.

void SimulatedCluster::OnProcess(ProcessId process, absl::Duration delay,
                                 Task task) {
  events_.After(delay, [this, process, task = std::move(task)] {
    RunTask(process, task);
  });
}

void SimulatedCluster::OnLife(Process& process, absl::Duration delay,
                              Task task) {
  OnProcess(process.id, delay,
            [&process, life = process.life, task = std::move(task)] {
              if (process.life == life) task();
            });
}

void SimulatedCluster::RunTask(ProcessId process, const Task& task) {
  Process& target = *processes_[process];
  if (!target.alive) return;
  if (target.paused) {
    target.deferred.push_back(task);
  } else {
    task();
  }
}

void SimulatedCluster::At(absl::Duration time, std::function<void()> fault) {
  events_.At(absl::UnixEpoch() + time, std::move(fault));
}

void SimulatedCluster::OpenSession(ProcessId process) {
  Process& opener = *processes_[process];
  if (opener.session.has_value() || opener.member->over()) return;
  if (coordinator_ == nullptr) {
    OnProcess(process, kSessionBackoff,
              [this, process] { OpenSession(process); });
    return;
  }
  opener.session = next_session_++;
  sessions_[*opener.session] = process;
  Outbox out;
  opener.member->OnSession(out);
  Execute(opener, out);
}

void SimulatedCluster::ToCoordinator(ProcessId process,
                                     const MemberMessage& message) {
  Process& sender = *processes_[process];
  if (!sender.session.has_value()) return;
  sender.last_sent = std::max({sender.last_sent,
                               events_.now() + Draw(options_.network.delay_max),
                               coordinator_awake_});
  events_.At(sender.last_sent, [this, session = *sender.session, message] {
    if (!sessions_.contains(session)) return;
    CoordinatorOutbox out;
    coordinator_->OnMessage(session, message, events_.now(), out);
    Carry(out);
  });
}

void SimulatedCluster::Carry(const CoordinatorOutbox& out) {
  for (const CoordinatorAction& action : out) {
    if (const auto* save = std::get_if<SaveState>(&action)) {
      saved_ = save->state;
      if (!crash_at_save_) continue;
      crash_at_save_ = false;
      CrashCoordinator();
      return;
    }
    if (const auto* complete = std::get_if<CompleteCheckpoint>(&action)) {
      Complete(*complete);
      continue;
    }
    if (const auto* send = std::get_if<SendToMember>(&action)) {
      const auto found = sessions_.find(send->session);
      if (found == sessions_.end()) continue;
      const ProcessId process = found->second;
      Process& receiver = *processes_[process];
      const auto* start = std::get_if<EpochStart>(&send->message);
      // The whole job goes back.
      if (start != nullptr && start->fresh &&
          start->self.role == Role::kShard) {
        ForgetAfter(start->job->base_round);
      }
      if (start != nullptr && start->fresh) {
        // What it has come to is not what the others will.
        std::erase_if(outcomes_, [&](const auto& outcome) {
          return outcome.second.by == process;
        });
      }
      receiver.last_told = std::max(
          receiver.last_told, events_.now() + Draw(options_.network.delay_max));
      events_.At(receiver.last_told, [this, process, message = send->message] {
        RunTask(process, [this, process, message] {
          Process& told = *processes_[process];
          Outbox out;
          told.member->OnMessage(message, out);
          Execute(told, out);
          if (told.alive) network_.OfferAgain(process);
        });
      });
    } else if (const auto* end = std::get_if<EndSession>(&action)) {
      const auto found = sessions_.find(end->session);
      if (found == sessions_.end()) continue;
      const ProcessId process = found->second;
      events_.At(processes_[process]->last_told,
                 [this, process] { BreakSession(process); });
    }
  }
}

void SimulatedCluster::BreakSession(ProcessId process) {
  Process& target = *processes_[process];
  if (!target.session.has_value()) return;
  const SessionId session = *std::exchange(target.session, std::nullopt);
  sessions_.erase(session);
  const Task end = [this, session] {
    if (coordinator_ == nullptr) return;
    CoordinatorOutbox out;
    coordinator_->OnSessionEnd(session, events_.now(), out);
    Carry(out);
  };
  if (events_.now() < coordinator_awake_) {
    events_.At(coordinator_awake_, end);
  } else {
    end();
  }
  OnProcess(process, kSessionBackoff,
            [this, process] { OpenSession(process); });
}

void SimulatedCluster::Tick() {
  if (events_.now() < coordinator_awake_) {
    events_.At(coordinator_awake_, [this] { Tick(); });
    return;
  }
  if (coordinator_ != nullptr) {
    CoordinatorOutbox out;
    coordinator_->OnTick(events_.now(), out);
    Carry(out);
  }
  events_.After(kTickInterval, [this] { Tick(); });
}

void SimulatedCluster::Beat(ProcessId process) {
  const Process& beating = *processes_[process];
  Heartbeat heartbeat;
  if (beating.worker != nullptr) {
    heartbeat.begun_step = beating.worker->Report().begun_step;
    heartbeat.round = std::max(kInitialRound, beating.step - 1);
  }
  if (beating.member->start() != nullptr) ToCoordinator(process, heartbeat);
  OnProcess(process, kHeartbeatInterval, [this, process] { Beat(process); });
}

// Faults.

void SimulatedCluster::Crash(ProcessId process) {
  Process& victim = *processes_[process];
  if (!victim.alive) return;
  victim.alive = false;
  for (const auto& other : processes_) {
    if (other->alive) BreakConnection(process, other->id);
  }
  events_.After(Draw(options_.network.delay_max),
                [this, process] { BreakSession(process); });
  victim.worker = nullptr;
  victim.shard = nullptr;
  victim.member.reset();
  victim.deferred.clear();
}

void SimulatedCluster::CrashCoordinator(bool halfway) {
  if (coordinator_ == nullptr) return;
  if (halfway) {
    crash_at_save_ = true;
    return;
  }
  coordinator_.reset();
  coordinator_awake_ = absl::InfinitePast();
  ++coordinator_life_;
  for (const auto& process : processes_) BreakSession(process->id);
}

void SimulatedCluster::RestartCoordinator() {
  if (coordinator_ != nullptr) return;
  if (!saved_.has_value()) {
    coordinator_ = std::make_unique<Coordinator>(CoordinatorOptionsOf());
    return;
  }
  CoordinatorState state = *saved_;
  if (options_.has_disk) {
    const auto newest = FindNewest(disk_);
    failure_.Update(newest.status());
    if (newest.ok() && newest->has_value()) {
      state.checkpoints.newest = (*newest)->record;
    }
  }
  coordinator_ = std::make_unique<Coordinator>(CoordinatorOptionsOf(),
                                               std::move(state), events_.now());
}

absl::Status SimulatedCluster::RequestCheckpoint() {
  if (coordinator_ == nullptr) return absl::UnavailableError("no coordinator");
  CoordinatorOutbox out;
  const absl::Status status =
      coordinator_->RequestCheckpoint(events_.now(), out);
  Carry(out);
  return status;
}

bool SimulatedCluster::Connected(ProcessId a, ProcessId b) const {
  const auto knows = [&](ProcessId self, ProcessId peer) {
    const Member* member = processes_[self]->member.get();
    const Member* other = processes_[peer]->member.get();
    return member != nullptr && other != nullptr &&
           member->start() != nullptr && other->start() != nullptr &&
           FindProcess(*member->start(), other->start()->self) == peer;
  };
  return a != b && (knows(a, b) || knows(b, a));
}

void SimulatedCluster::BreakConnection(ProcessId a, ProcessId b) {
  if (!Connected(a, b)) return;
  network_.Break(a, b);
  for (const auto& ends : {std::pair{a, b}, std::pair{b, a}}) {
    const ProcessId self = ends.first;
    const ProcessId peer = ends.second;
    const PeerId id = processes_[peer]->member->start()->self;
    OnProcess(self, Draw(options_.network.delay_max),
              [this, self, peer, id, was = processes_[self]->renewed[peer]] {
                Process& process = *processes_[self];
                if (process.renewed[peer] > was) return;
                process.lost.insert(peer);
                Outbox out;
                process.member->OnLostPeer(id, "it was reset", out);
                Execute(process, out);
              });
  }
}

void SimulatedCluster::Pause(ProcessId process) {
  processes_[process]->paused = true;
}

void SimulatedCluster::Resume(ProcessId process) {
  Process& target = *processes_[process];
  target.paused = false;
  for (const Task& task : std::exchange(target.deferred, {})) {
    RunTask(process, task);
  }
  if (target.alive) network_.OfferAgain(process);
}

void SimulatedCluster::LeaveSoon(ProcessId process) {
  Process& target = *processes_[process];
  target.leave_soon = true;
  if (target.alive && target.idle && target.worker != nullptr) TryStep(target);
}

// The machines, and what they ask for.

std::unique_ptr<Machine> SimulatedCluster::MakeMachine(ProcessId id,
                                                       const EpochStart& start,
                                                       Outbox& out) {
  Process& process = *processes_[id];
  progress_at_ = events_.now();
  if (process.role == Role::kWorker) return MakeWorker(process, start, out);
  auto shard = std::make_unique<Shard>(start.job, start.self.rank);
  process.shard = shard.get();
  shard->Start(out);
  return shard;
}

void SimulatedCluster::Follow(Process& process, const EpochStart& start) {
  for (const auto& [first, second] : start.lost_links) {
    if (first != start.self && second != start.self) continue;
    const auto peer = FindProcess(start, first == start.self ? second : first);
    if (!peer.has_value()) continue;
    ++process.renewed[*peer];
    process.lost.insert(*peer);
  }
  for (const ProcessId peer : process.lost) network_.Connect(process.id, peer);
  process.lost.clear();
}

bool SimulatedCluster::Deliver(ProcessId from, ProcessId to,
                               const Frame& frame) {
  Process& receiver = *processes_[to];
  if (!receiver.alive) return true;
  if (receiver.paused) return false;
  const PeerId sender = frame.header.sender;
  const auto landing = receiver.member->OnHeader(sender, frame.header);
  if (!landing.ok()) {
    failure_.Update(absl::InternalError(
        absl::StrCat("process ", to, " refused a frame of process ", from, ": ",
                     landing.status().message())));
    return true;
  }
  if (landing->kind == Landing::Kind::kWait) return false;
  if (landing->kind == Landing::Kind::kDiscard) return true;
  Frame received{frame.header, landing->place};
  if (landing->kind == Landing::Kind::kScratch) {
    received.payload = Buffer::Allocate(frame.payload.bytes());
  }
  if (frame.payload.bytes() > 0) {
    std::memcpy(received.payload.data(), frame.payload.data(),
                static_cast<size_t>(frame.payload.bytes()));
  }
  Outbox out;
  receiver.member->OnFrame(sender, received, out);
  Execute(receiver, out);
  return true;
}

void SimulatedCluster::Execute(Process& process, Outbox& out) {
  bool entered = false;
  for (const Action& action : out.actions()) {
    if (ExecuteArithmetic(action)) continue;
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      Transmit(process, send->to, send->frame);
    } else if (const auto* broadcast = std::get_if<BroadcastFrame>(&action)) {
      Broadcast(process, broadcast->frame);
    } else if (const auto* done = std::get_if<LayerDone>(&action)) {
      OnLife(process, absl::ZeroDuration(),
             [this, &process, done = *done] { OnLayerDone(process, done); });
    } else if (const auto* message = std::get_if<SendMessage>(&action)) {
      ToCoordinator(process.id, message->message);
    } else if (const auto* follow = std::get_if<FollowEpoch>(&action)) {
      Follow(process, *follow->start);
      entered = true;
    } else if (const auto* save = std::get_if<SaveCheckpoint>(&action)) {
      Save(process, *save);
    } else if (const auto* load = std::get_if<LoadCheckpoint>(&action)) {
      Load(process, *load);
    } else if (const auto* end = std::get_if<EndMembership>(&action)) {
      OnEnd(process, end->outcome);
    }
  }
  if (entered && process.idle && process.worker != nullptr) TryStep(process);
}

void SimulatedCluster::OnEnd(Process& process, const absl::Status& outcome) {
  if (coordinator_ != nullptr && coordinator_->state() == JobState::kFailed) {
    failure_.Update(absl::AbortedError(coordinator_->reason()));
  } else if (coordinator_ != nullptr &&
             coordinator_->state() != JobState::kRunning) {
    failure_.Update(outcome);
  }
  // A worker that was counted as dead comes again, and so does a shard whatever
  // it was told; a worker that was never let in does not.
  const bool again = !outcome.ok() && process.worker != nullptr;
  OnProcess(process.id, absl::ZeroDuration(), [this, &process, again] {
    Crash(process.id);
    if (again) StartWorker();
    if (process.role == Role::kShard) ReplaceShard(process.index);
  });
}

void SimulatedCluster::ReplaceShard(int shard) {
  events_.After(kReplacementDelay, [this, shard] {
    if (!alive(shard_process(shard))) StartShard(shard);
  });
}

void SimulatedCluster::Broadcast(Process& from, const Frame& frame) {
  const EpochStart& start = *from.member->start();
  for (const WorkerSeat& seat : start.job->workers) {
    const PeerId to = PeerId::Worker(seat.rank);
    if (to != start.self) Transmit(from, to, frame);
  }
}

void SimulatedCluster::Transmit(Process& from, PeerId to, const Frame& frame) {
  const EpochStart& start = *from.member->start();
  const auto receiver = FindProcess(start, to);
  NEREUS_CHECK(receiver.has_value()) << PeerName(to) << " is no member";
  const auto nodes = static_cast<int>(node_bytes_.size());
  const int self = start.self.rank;
  if (self != to.rank && self < nodes && to.rank < nodes) {
    const int64_t bytes = kFrameHeaderBytes + frame.payload.bytes();
    node_bytes_[self] += bytes;
    node_bytes_[to.rank] += bytes;
  }
  network_.Send(from.id, *receiver, frame);
}

// What tests look at.

std::vector<ProcessId> SimulatedCluster::live_workers() const {
  std::vector<ProcessId> live;
  for (const auto& process : processes_) {
    if (process->alive && process->role == Role::kWorker && !process->left) {
      live.push_back(process->id);
    }
  }
  return live;
}

bool SimulatedCluster::AllDone(int64_t steps) const {
  const std::vector<ProcessId> live = live_workers();
  return !live.empty() &&
         std::all_of(live.begin(), live.end(), [&](ProcessId id) {
           const Process& process = *processes_[id];
           // One that comes too late for these steps may be waiting for others
           // to begin the next one.
           return process.worker != nullptr &&
                  (process.step >= steps ||
                   (process.fetching && process.step == steps - 1 &&
                    steps > 0));
         });
}

absl::Status SimulatedCluster::RunSteps(int64_t steps) {
  steps_wanted_ = steps;
  progress_at_ = events_.now();
  for (const ProcessId id : live_workers()) {
    Process& process = *processes_[id];
    if (process.idle && process.worker != nullptr && !process.paused) {
      TryStep(process);
    }
  }
  while (failure_.ok() && !AllDone(steps)) {
    if (!events_.RunNext() || events_.now() - progress_at_ > patience_) {
      return absl::DeadlineExceededError(DescribeWaits());
    }
  }
  return failure_;
}

void SimulatedCluster::AdvanceBy(absl::Duration time) {
  const absl::Time end = events_.now() + time;
  bool over = false;
  events_.At(end, [&over] { over = true; });
  while (!over && failure_.ok()) events_.RunNext();
}

std::string SimulatedCluster::DescribeWaits() const {
  std::string text = "nothing moves any more";
  for (const ProcessId id : live_workers()) {
    const Process& process = *processes_[id];
    if (process.worker == nullptr) {
      absl::StrAppend(&text, "; process ", id, " has not been admitted");
      continue;
    }
    for (size_t layer = 0; layer < workload_.layers.size(); ++layer) {
      const Syncer& syncer = process.worker->syncer(static_cast<int>(layer));
      if (process.idle || syncer.done_round() >= process.step) continue;
      absl::StrAppend(&text, "; worker ", process.rank, " in step ",
                      process.step, " waits in layer ",
                      workload_.layers[layer].name, " for ", syncer.Missing());
    }
  }
  if (coordinator_ == nullptr) return absl::StrCat(text, "; no coordinator");
  const JobStatus status = coordinator_->Status(events_.now());
  return absl::StrCat(text, "; epoch ", status.epoch, " ", status.waiting);
}

const SimulatedCluster::Process* SimulatedCluster::FindWorker(int rank) const {
  for (const ProcessId id : live_workers()) {
    if (processes_[id]->rank == rank) return processes_[id].get();
  }
  NEREUS_CHECK(false) << "no worker " << rank;
  return nullptr;
}

absl::Span<const float> SimulatedCluster::parameters(int rank,
                                                     int layer) const {
  return Floats(FindWorker(rank)->parameters[layer]);
}

absl::Span<const float> SimulatedCluster::mean_gradient(int rank,
                                                        int layer) const {
  return Floats(FindWorker(rank)->gradients[layer]);
}

const Shard& SimulatedCluster::shard(int index) const {
  return *processes_[shard_process(index)]->shard;
}

}  // namespace nereus
