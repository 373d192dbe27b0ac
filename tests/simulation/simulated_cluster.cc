
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/driver/arithmetic.h"
#include "common/driver/wire_values.h"
#include "common/protocol/action_visitor.h"
#include "common/protocol/connections.h"
#include "server/process/checkpoint_files.h"
#include "tests/simulation/simulated_process.h"

namespace nereus {
namespace {

constexpr absl::Duration kStartSpread = absl::Milliseconds(50);

// What a step takes at most, with all that a fault costs beside a lease: the
// grace of a session, another shard's start, values that are sent again.
constexpr absl::Duration kRecovery = absl::Seconds(4);

}  // namespace

CoordinatorOptions SimulatedCluster::CoordinatorOptionsOf() const {
  const SimulatedClusterOptions& options = options_;
  CoordinatorOptions made;
  made.spec.name = kSimulatedJob;
  made.job_id = options.seed + 1;
  made.spec.workers = options.workers;
  made.spec.shards = options.shards;
  made.own_shard = options.coordinator_is_shard_0 ? 0 : -1;
  made.spec.min_workers = options.min_workers;
  made.spec.max_workers = options.max_workers;
  made.spec.rules = options.rules;
  made.spec.options = options.job;
  made.spec.lease_seconds = absl::ToDoubleSeconds(options.lease);
  made.replan_interval = absl::ZeroDuration();
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
      wait_max_(options.lease + kRecovery),
      progress_at_(events_.now()),
      disturbed_at_(events_.now()) {
  for (int shard = 0; shard < options.shards; ++shard) {
    Launch(RequestOf(Role::kShard, shard));
  }
  for (int worker = 0; worker < options.workers; ++worker) {
    Launch(RequestOf(Role::kWorker, 0));
  }
  events_.After(kTickInterval, [this] { Tick(); });
}

SimulatedCluster::~SimulatedCluster() = default;

JoinRequest SimulatedCluster::RequestOf(Role role, int shard) const {
  const size_t id = processes_.size();
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = kSimulatedJob;
  request.role = role;
  request.shard = shard;
  request.incarnation = id + 1;
  request.name = absl::StrCat("p", id);
  request.data_address = absl::StrCat("p", id);
  request.has_checkpoints = role == Role::kShard && options_.has_disk;
  if (role == Role::kWorker) {
    request.layers = workload_.layers;
    request.state_arrays = OptimizerStateCount(options_.job.optimizer.rule);
  }
  return request;
}

SimulatedCluster::Process& SimulatedCluster::Launch(JoinRequest request) {
  const auto id = static_cast<ProcessId>(processes_.size());
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.id = id;
  process.role = request.role;
  process.index = request.shard;
  process.name = request.name;
  disturbed_at_ = events_.now();
  network_.SetRate(id, options_.node_rate);
  process.member = std::make_unique<Member>(
      std::move(request), [this, id](const EpochStart& start, Outbox& out) {
        return MakeMachine(id, start, out);
      });
  OnProcess(id, Draw(kStartSpread), [this, id] { OpenSession(id); });
  events_.After(kHeartbeatInterval, [this, id] { Beat(id); });
  return process;
}

ProcessId SimulatedCluster::StartWorker(const std::string& name) {
  JoinRequest request = RequestOf(Role::kWorker, 0);
  if (!name.empty()) request.name = name;
  return Launch(std::move(request)).id;
}

const std::string& SimulatedCluster::name_of(ProcessId worker) const {
  return processes_[worker]->name;
}

ProcessId SimulatedCluster::StartStranger() {
  JoinRequest request = RequestOf(Role::kWorker, 0);
  switch (random_.Below(5)) {
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
      request.shard = options_.shards;
      request.layers.clear();
      break;
  }
  Process& process = Launch(std::move(request));
  process.stranger = true;
  return process.id;
}

ProcessId SimulatedCluster::StartShard(int shard) {
  return Launch(RequestOf(Role::kShard, shard)).id;
}

ProcessId SimulatedCluster::shard_process(int shard) const {
  ProcessId found = -1;
  for (const auto& process : processes_) {
    if (process->role == Role::kShard && process->index == shard &&
        !process->stranger) {
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
  if (target.paused || target.stalled) {
    target.deferred.push_back(task);
  } else {
    task();
  }
}

void SimulatedCluster::At(absl::Duration time, Task fault) {
  events_.At(absl::UnixEpoch() + time, std::move(fault));
}

// The machines, and what they ask for.

std::unique_ptr<Machine> SimulatedCluster::MakeMachine(ProcessId id,
                                                       const EpochStart& start,
                                                       Outbox& out) {
  Process& process = *processes_[id];
  progress_at_ = events_.now();
  if (process.stranger) {
    failure_.Update(absl::InternalError("a stranger was let in"));
  }
  if (process.role == Role::kWorker) return MakeWorker(process, start, out);
  auto server = std::make_unique<ServerMachine>(start.job, start.self.rank);
  process.server = server.get();
  server->Start(out);
  return server;
}

void SimulatedCluster::Follow(Process& process, const EpochStart& start) {
  for (const PeerId dropped : ConnectionsOf(start).dropped) {
    const auto peer = FindProcess(start, dropped);
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
  const bool stands_still = receiver.paused || receiver.stalled;
  if (stands_still || Separated(from, to)) return false;
  const PeerId sender = frame.header.sender;
  const auto landing = receiver.member->OnHeader(sender, frame.header);
  if (!landing.ok()) {
    failure_.Update(absl::InternalError(
        absl::StrCat("process ", to, " refused a frame of process ", from, ": ",
                     landing.status().message())));
    return true;
  }
  if (landing->kind == Landing::Kind::kWait) return false;
  if (CutsHere(from, to)) {
    LoseRestOfFrame(from, to, frame, landing->place);
    return true;
  }
  if (landing->kind == Landing::Kind::kDiscard) return true;
  const bool encoded = IsEncoded(frame.header);
  Frame received{frame.header, landing->place};
  if (landing->kind == Landing::Kind::kScratch || encoded) {
    received.payload = Buffer::Allocate(frame.payload.bytes());
  }
  if (frame.payload.bytes() > 0) {
    std::memcpy(received.payload.data(), frame.payload.data(),
                static_cast<size_t>(frame.payload.bytes()));
  }
  const absl::Status intact = CheckPayload(received.header, received.payload);
  if (!intact.ok()) {
    // Its bytes were changed while it was under way, which is right only where
    // the sender has left the epoch, and the receiver is to hear of that.
    const Process& origin = *processes_[from];
    const bool sender_is_here =
        origin.alive &&
        origin.member->start()->job->epoch == frame.header.epoch;
    if (sender_is_here) failure_.Update(intact);
    return true;
  }
  if (encoded && landing->kind == Landing::Kind::kPlace) {
    DecodePayload(frame.header, received.payload, landing->place);
    received.payload = landing->place;
  }
  Outbox out;
  receiver.member->OnFrame(sender, received, out);
  Execute(receiver, out);
  CheckMemory(receiver);
  // Nobody hears of what one has that has failed.
  if (receiver.failed || processes_[from]->failed) return true;
  if (frame.header.kind == FrameKind::kHave && processes_[from]->alive) {
    CheckCopy(*processes_[from], receiver, frame.header);
  }
  if (frame.header.kind == FrameKind::kResult && sender.role == Role::kShard) {
    CheckShown(receiver, frame.header);
  }
  return true;
}

void SimulatedCluster::Execute(Process& process, Outbox& out) {
  bool entered = false;
  const ActionVisitor carry_out{
      [&](const SendMessage& send) { ToCoordinator(process.id, send.message); },
      [&](const EndMembership& end) { OnEnd(process, end.outcome); },
      [&](const CheckingAction auto& checking) {
        const NotFinite found = ExecuteArithmetic(checking);
        if (found.index >= 0) Fail(process, CheckOf(checking), found);
      },
      [](const ArithmeticAction auto& action) { ExecuteArithmetic(action); },
      [&](const SendFrame& send) { Transmit(process, send.to, send.frame); },
      [&](const BroadcastFrame& all) { Broadcast(process, all.frame); },
      [&](const LayerDone& done) {
        OnLife(process, absl::ZeroDuration(),
               [this, &process, done] { OnLayerDone(process, done); });
      },
      [&](const ChecksumValues& sum) {
        Outbox more;
        process.member->OnChecksum(sum, Checksum(sum.values), more);
        Execute(process, more);
      },
      [&](const FollowEpoch& follow) {
        Follow(process, *follow.start);
        entered = true;
      },
      [&](const SaveCheckpoint& save) { Save(process, save); },
      [&](const LoadCheckpoint& load) { Load(process, load); },
      [](const ProbeAnswered&) {},  // No worker sends probes here.
  };
  for (const Action& action : out.actions()) {
    if (!process.failed || IsMessage(action)) std::visit(carry_out, action);
  }
  if (entered && process.idle && process.worker != nullptr) TryStep(process);
  if (process.breaks_now) {
    process.breaks_now = false;
    BreakConnection(process.id, *std::exchange(process.breaks_after_send, {}));
  }
}

void SimulatedCluster::Fail(Process& process, const GradientCheck& check,
                            const NotFinite& found) {
  process.failed = true;
  Outbox last;
  process.member->OnNotFinite(check, found, last);
  Execute(process, last);
}

void SimulatedCluster::OnEnd(Process& process, const absl::Status& outcome) {
  if (coordinator_ != nullptr && coordinator_->state() == JobState::kFailed) {
    failure_.Update(absl::AbortedError(coordinator_->reason()));
  } else if (coordinator_ != nullptr &&
             coordinator_->state() == JobState::kGathering &&
             !process.stranger) {
    failure_.Update(outcome);
  }
  if (options_.coordinator_is_shard_0 && process.role == Role::kShard &&
      process.index == 0 &&
      absl::StrContains(outcome.message(), "cannot keep a connection")) {
    failure_.Update(absl::InternalError("the coordinator had itself go"));
  }
  if (process.stranger && outcome.message().empty()) {
    failure_.Update(absl::InternalError("a stranger was not told why"));
  }
  // A worker that was counted as dead comes again, and so does a shard whatever
  // it was told; a worker that was never let in does not.
  const bool again = !outcome.ok() && process.worker != nullptr;
  OnProcess(process.id, absl::ZeroDuration(), [this, &process, again] {
    Crash(process.id);
    if (again) StartWorker(process.name);
    if (process.role == Role::kShard && !process.stranger) {
      ReplaceShard(process.index);
    }
  });
}

void SimulatedCluster::ReplaceShard(int shard) {
  events_.After(kReplacementDelay, [this, shard] {
    if (!alive(shard_process(shard))) StartShard(shard);
  });
}

void SimulatedCluster::Broadcast(Process& from, const Frame& frame) {
  const EpochStart& start = *from.member->start();
  for (const EpochWorker& each : start.job->workers) {
    const PeerId to = PeerId::Worker(each.rank);
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
    const int64_t bytes = kFrameHeaderBytes + frame.header.payload_bytes;
    node_bytes_[self] += bytes;
    node_bytes_[to.rank] += bytes;
  }
  Frame sent = frame;
  EncodePayload(sent);
  // As transports do; one that is there is trusted.
  if (sent.header.payload_crc == 0) {
    sent.header.payload_crc = Checksum(sent.payload);
  }
  sent.priority = start.job->SendPriority(frame.header);
  sent.fused = start.job->fuses();
  network_.Send(from.id, *receiver, sent);
  from.breaks_now = from.breaks_now || from.breaks_after_send == receiver;
}

// What tests look at.

std::vector<ProcessId> SimulatedCluster::live_workers() const {
  std::vector<ProcessId> live;
  for (const auto& process : processes_) {
    if (process->alive && process->role == Role::kWorker && !process->left &&
        !process->stranger) {
      live.push_back(process->id);
    }
  }
  return live;
}

bool SimulatedCluster::HasDone(const Process& process, int64_t steps) const {
  // One that comes too late for these steps may be waiting for others to begin
  // the next one.
  return process.worker != nullptr &&
         (process.step >= steps ||
          (process.fetching && process.step == steps - 1 && steps > 0));
}

bool SimulatedCluster::AllDone(int64_t steps) const {
  const std::vector<ProcessId> live = live_workers();
  if (live.empty()) {
    return coordinator_ != nullptr &&
           coordinator_->state() == JobState::kFinished;
  }
  return std::all_of(live.begin(), live.end(), [&](ProcessId id) {
    return HasDone(*processes_[id], steps);
  });
}

bool SimulatedCluster::MustWait() const {
  const auto here = [&](ProcessId id) {
    const Process& process = *processes_[id];
    return process.alive && !process.paused && !process.stalled &&
           !far_.contains(id);
  };
  if (coordinator_ == nullptr || !begun()) return true;
  bool all_here = true;
  for (int shard = 0; shard < job().shards(); ++shard) {
    all_here = all_here && here(shard_process(shard));
  }
  // One that has come since holds nothing yet.
  const auto holds = [&](int server) {
    const ProcessId id = shard_process(server);
    return here(id) && processes_[id]->server != nullptr;
  };
  for (const ShardServers& servers : job().shard_servers) {
    const bool held = holds(servers.primary) ||
                      (servers.backup_is_current && holds(servers.backup));
    // All are needed to go back to a checkpoint.
    if (!held && !all_here) return true;
  }
  int workers = 0;
  bool all_done = true;
  for (const ProcessId id : live_workers()) {
    if (!here(id)) continue;
    ++workers;
    all_done = all_done && HasDone(*processes_[id], steps_wanted_);
  }
  return all_done || workers < options_.min_workers;
}

absl::Status SimulatedCluster::CheckWait() const {
  const absl::Time now = events_.now();
  const bool silent = now - progress_at_ > patience_;
  const absl::Time since = std::max(progress_at_, disturbed_at_);
  if (!silent && now - since <= wait_max_) return absl::OkStatus();
  return absl::DeadlineExceededError(DescribeWaits());
}

bool SimulatedCluster::RunNext() {
  if (!events_.RunNext()) return false;
  Note(static_cast<uint64_t>(absl::ToUnixNanos(events_.now())), 0);
  return true;
}

void SimulatedCluster::CheckMemory(const Process& process) {
  if (!process.alive || process.server == nullptr) return;
  const Job& job = *process.member->start()->job;
  int64_t values = 0;
  for (const Chunk& chunk : job.placement.chunks()) {
    const ShardServers& servers = job.shard_servers[chunk.shard];
    const bool held =
        servers.primary == process.index || servers.backup == process.index;
    if (held) values += chunk.length;
  }
  // The parameters with the optimizer's state, and two checkpoints of them or
  // what is on its way from a server; means; the sum under way; what waits for
  // its turn in that.
  const int64_t states = OptimizerStateCount(job.options.optimizer.rule);
  const int64_t waiting = job.options.deterministic ? job.worker_count() : 0;
  const int64_t bytes_max =
      values * static_cast<int64_t>(sizeof(float)) *
      (3 * (1 + std::max<int64_t>(states, job.state_arrays)) + 3 + waiting);
  const int64_t bytes = process.server->held_bytes();
  if (bytes <= bytes_max) return;
  failure_.Update(absl::InternalError(
      absl::StrCat("shard ", process.index, " holds ", bytes, " bytes of ",
                   values, " values, at most ", bytes_max, " are right")));
}

void SimulatedCluster::CheckCopy(const Process& copy, const Process& server,
                                 const FrameHeader& header) {
  const auto layer = static_cast<int>(header.layer);
  const auto chunk = static_cast<int>(header.chunk);
  const int index = job().placement.layer_chunks(layer)[chunk].shard;
  const Shard* here = server.server->shard(index);
  const Shard* there = copy.server->shard(index);
  if (here == nullptr || there == nullptr) return;
  const ChunkRounds& primary = here->chunk(layer, chunk);
  const ChunkRounds& backup = there->chunk(layer, chunk);
  if (primary.round() != backup.round()) return;
  const bool same =
      Checksum(primary.held().parameters) ==
          Checksum(backup.held().parameters) &&
      Checksum(primary.held().state) == Checksum(backup.held().state);
  if (same) return;
  failure_.Update(absl::InternalError(
      absl::StrCat("process ", copy.id, "'s copy of layer ", layer, ", chunk ",
                   chunk, " differs from what process ", server.id,
                   " has before round ", header.round)));
}

void SimulatedCluster::CheckShown(const Process& worker,
                                  const FrameHeader& header) {
  const EpochStart& start = *worker.member->start();
  const auto layer = static_cast<int>(header.layer);
  const auto chunk = static_cast<int>(header.chunk);
  const int index = start.job->placement.layer_chunks(layer)[chunk].shard;
  const ShardServers& servers = start.job->shard_servers[index];
  if (!servers.backup_is_current) return;
  const auto copy = FindProcess(start, PeerId::Shard(servers.backup));
  if (!copy.has_value() || !alive(*copy)) return;
  const Process& holder = *processes_[*copy];
  // It may be in the next epoch already, with other roles.
  if (holder.server == nullptr ||
      holder.member->start()->job->epoch > start.job->epoch) {
    return;
  }
  const int64_t open = holder.server->shard(index)->chunk(layer, chunk).round();
  if (open > header.round) return;
  failure_.Update(absl::InternalError(
      absl::StrCat("worker ", worker.rank, " was shown round ", header.round,
                   " of layer ", layer, ", chunk ", chunk, ", and process ",
                   holder.id, "'s copy is at round ", open)));
}

void SimulatedCluster::Note(uint64_t what, uint64_t whose) {
  constexpr uint64_t kPrime = 0x100000001b3;  // FNV-1a, a word at a time.
  digest_ = ((digest_ ^ what) * kPrime ^ whose) * kPrime;
}

absl::Status SimulatedCluster::RunSteps(int64_t steps) {
  steps_wanted_ = steps;
  progress_at_ = events_.now();
  for (const ProcessId id : live_workers()) {
    Process& process = *processes_[id];
    if (process.idle && process.worker != nullptr && !process.paused &&
        !process.stalled) {
      TryStep(process);
    }
  }
  while (failure_.ok() && !AllDone(steps)) {
    if (!RunNext()) return absl::DeadlineExceededError(DescribeWaits());
    const absl::Status waits = CheckWait();
    if (!waits.ok()) return waits;
  }
  return failure_;
}

absl::Status SimulatedCluster::Finish() {
  last_step_ = kInitialRound;
  for (const ProcessId id : live_workers()) LeaveSoon(id);
  const absl::Time limit = events_.now() + patience_;
  while (failure_.ok() && (coordinator_ == nullptr || !coordinator_->over())) {
    if (!RunNext() || events_.now() > limit) {
      return absl::DeadlineExceededError(
          absl::StrCat("the job does not end; ", DescribeWaits()));
    }
  }
  if (!failure_.ok() || coordinator_->state() != JobState::kFinished) {
    return failure_;
  }
  const auto newest = FindNewest(disk_);
  const int64_t saved = newest.ok() && newest->has_value()
                            ? (*newest)->record.round
                            : kInitialRound;
  const bool may_fail =
      !options_.has_disk || options_.disk.failure_probability > 0;
  if (may_fail || saved >= last_step_ ||
      (coordinator_->checkpoints().HasFailed(last_step_) ||
       coordinator_->epochs().Has(ChangeReason::kShardLost))) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the job ended after step ",
                                          last_step_, ", round ", saved,
                                          " is its newest checkpoint"));
}

void SimulatedCluster::AdvanceBy(absl::Duration time) {
  const absl::Time end = events_.now() + time;
  bool over = false;
  events_.At(end, [&over] { over = true; });
  while (!over && failure_.ok()) RunNext();
}

std::string SimulatedCluster::DescribeWaits() const {
  std::string text = "nothing moves any more";
  for (const ProcessId id : live_workers()) {
    const Process& process = *processes_[id];
    if (process.worker == nullptr) {
      absl::StrAppend(&text, "; process ", id, " has not been admitted");
      continue;
    }
    if (process.paused || process.stalled) {
      absl::StrAppend(&text, "; worker ", process.rank, " stands still");
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

const WorkerMachine& SimulatedCluster::worker(int rank) const {
  return *FindWorker(rank)->worker;
}

absl::Span<const float> SimulatedCluster::mean_gradient(int rank,
                                                        int layer) const {
  return Floats(FindWorker(rank)->means[layer]);
}

const Shard& SimulatedCluster::shard(int index) const {
  const ProcessId server = shard_process(job().shard_servers[index].primary);
  return *processes_[server]->server->shard(index);
}

}  // namespace nereus
