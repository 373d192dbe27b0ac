#include "common/simulation/simulated_cluster.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/compute/arithmetic.h"

namespace nereus {
namespace {

constexpr char kJobName[] = "simulated";
constexpr absl::Duration kStartSpread = absl::Milliseconds(50);
constexpr absl::Duration kTickInterval = absl::Milliseconds(200);
constexpr absl::Duration kSessionBackoff = absl::Milliseconds(100);

CoordinatorOptions MakeCoordinatorOptions(
    const SimulatedClusterOptions& options) {
  CoordinatorOptions made;
  made.job = kJobName;
  made.job_id = options.seed + 1;
  made.workers = options.workers;
  made.shards = options.shards;
  made.min_workers = options.min_workers;
  made.max_workers = options.max_workers;
  made.forced_scheme = options.forced_scheme;
  made.job_options = options.job;
  made.lease = options.lease;
  return made;
}

absl::Span<float> Floats(const Buffer& buffer) {
  return absl::MakeSpan(buffer.floats(),
                        static_cast<size_t>(buffer.float_count()));
}

Buffer AllocateFloats(int64_t count) {
  return Buffer::AllocateZeroed(count * static_cast<int64_t>(sizeof(float)));
}

uint32_t Checksum(const Buffer& buffer) {
  return Crc32c(buffer.data(), static_cast<size_t>(buffer.bytes()));
}

// Where a peer is; data addresses are the numbers of processes: "p7".
std::optional<ProcessId> FindProcess(const EpochStart& start, PeerId peer) {
  for (const Seat& seat : start.seats) {
    ProcessId process = 0;
    if (seat.id == peer &&
        absl::SimpleAtoi(seat.data_address.substr(1), &process)) {
      return process;
    }
  }
  return std::nullopt;
}

}  // namespace

struct SimulatedCluster::Process {
  ProcessId id = 0;
  Role role = Role::kWorker;
  bool alive = true;
  bool paused = false;
  std::deque<Task> deferred;  // While it is paused.

  std::unique_ptr<Member> member;
  Shard* shard = nullptr;
  WorkerMachine* worker = nullptr;  // The member's.
  std::optional<SessionId> session;
  absl::Time last_sent;      // To the coordinator, and from it: messages of a
  absl::Time last_told;      // session keep their order.
  std::set<ProcessId> lost;  // Peers whose connection it has lost,
  std::map<ProcessId, int> renewed;  // and how many it has given up itself.

  // Workers.
  int rank = -1;
  int life = 0;                    // Counts its machines.
  std::vector<Buffer> parameters;  // By layer.
  std::vector<Buffer> states;      // The optimizer's, if it runs here.
  std::vector<Buffer> gradients;
  std::vector<Buffer> output_gradients;  // Fully connected layers.
  std::vector<Buffer> inputs;
  int64_t step = kInitialRound;  // The one under way, or the next.
  int layers_left = 0;           // Not yet done in this step.
  bool fetching = true;          // The step is the one before its first.
  bool idle = true;              // Between two steps.
  bool leave_soon = false;
  bool left = false;
};

SimulatedCluster::SimulatedCluster(const SimulatedClusterOptions& options,
                                   Workload workload)
    : options_(options),
      workload_(std::move(workload)),
      random_(options.seed),
      network_(options.network, random_.Next(), &events_,
               [this](ProcessId from, ProcessId to, const Frame& frame) {
                 return Deliver(from, to, frame);
               }),
      coordinator_(MakeCoordinatorOptions(options)),
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
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = kJobName;
  request.role = role;
  request.shard = shard;
  request.incarnation = static_cast<uint64_t>(id) + 1;
  request.name = absl::StrCat("p", id);
  request.data_address = request.name;
  if (role == Role::kWorker) request.layers = workload_.layers;
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
  sender.last_sent = std::max(sender.last_sent,
                              events_.now() + Draw(options_.network.delay_max));
  events_.At(sender.last_sent, [this, session = *sender.session, message] {
    if (!sessions_.contains(session)) return;
    CoordinatorOutbox out;
    coordinator_.OnMessage(session, message, events_.now(), out);
    Carry(out);
  });
}

void SimulatedCluster::Carry(const CoordinatorOutbox& out) {
  for (const CoordinatorAction& action : out) {
    if (const auto* send = std::get_if<SendToMember>(&action)) {
      const auto found = sessions_.find(send->session);
      if (found == sessions_.end()) continue;
      const ProcessId process = found->second;
      Process& receiver = *processes_[process];
      const auto* start = std::get_if<EpochStart>(&send->message);
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
  CoordinatorOutbox out;
  coordinator_.OnSessionEnd(session, events_.now(), out);
  Carry(out);
  OnProcess(process, kSessionBackoff,
            [this, process] { OpenSession(process); });
}

void SimulatedCluster::Tick() {
  CoordinatorOutbox out;
  coordinator_.OnTick(events_.now(), out);
  Carry(out);
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
  for (const auto& [self, peer] : {std::pair{a, b}, std::pair{b, a}}) {
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
  return shard;
}

std::unique_ptr<Machine> SimulatedCluster::MakeWorker(Process& process,
                                                      const EpochStart& start,
                                                      Outbox& out) {
  ++process.life;
  process.rank = start.self.rank;
  for (auto* buffers :
       {&process.parameters, &process.states, &process.gradients,
        &process.output_gradients, &process.inputs}) {
    buffers->clear();
  }
  const bool optimizes =
      start.job->options.optimizer_place == OptimizerPlace::kWorker;
  const int state_count =
      optimizes ? OptimizerStateCount(start.job->options.optimizer.rule) : 0;
  std::vector<LayerMemory> memory;
  for (size_t i = 0; i < workload_.layers.size(); ++i) {
    const LayerSpec& layer = workload_.layers[i];
    process.parameters.push_back(AllocateFloats(layer.parameters));
    process.states.push_back(AllocateFloats(state_count * layer.parameters));
    process.gradients.push_back(AllocateFloats(layer.parameters));
    const bool factors = GaveFactors(static_cast<int>(i));
    process.output_gradients.push_back(
        AllocateFloats(factors ? layer.rows * layer.m : 0));
    process.inputs.push_back(
        AllocateFloats(factors ? layer.rows * layer.n : 0));
    // Each process comes with parameters of its own; all but the first one's
    // are replaced.
    workload_.initialize(process.rank, static_cast<int>(i),
                         Floats(process.parameters.back()));
    memory.push_back({process.parameters.back(), process.states.back()});
  }
  auto worker = std::make_unique<WorkerMachine>(start.job, process.rank,
                                                std::move(memory));
  process.worker = worker.get();
  process.step =
      start.job->workers[start.job->PositionOf(process.rank)].first_step - 1;
  process.layers_left = static_cast<int>(workload_.layers.size());
  process.idle = false;
  process.fetching = true;
  worker->Start(out);
  return worker;
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
    } else if (const auto* end = std::get_if<EndMembership>(&action)) {
      OnEnd(process, end->outcome);
    }
  }
  if (entered && process.idle && process.worker != nullptr) TryStep(process);
}

void SimulatedCluster::OnEnd(Process& process, const absl::Status& outcome) {
  if (coordinator_.state() != JobState::kRunning) failure_.Update(outcome);
  // A worker that was counted as dead comes again; one that was never let in
  // does not.
  const bool again = !outcome.ok() && process.worker != nullptr;
  OnProcess(process.id, absl::ZeroDuration(), [this, &process, again] {
    Crash(process.id);
    if (again) StartWorker();
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

// What a trainer does.

bool SimulatedCluster::GaveFactors(int layer) const {
  return workload_.factors != nullptr &&
         workload_.layers[layer].kind == LayerKind::kFullyConnected;
}

void SimulatedCluster::TryStep(Process& process) {
  if (process.leave_soon && !process.left && process.step > kInitialRound) {
    process.left = true;
    Outbox out;
    process.member->OnLeave(process.step - 1, out);
    Execute(process, out);
  }
  if (process.left || process.step >= steps_wanted_) return;
  if (!process.worker->BeginStep(process.step)) return;
  process.idle = false;
  process.layers_left = static_cast<int>(workload_.layers.size());
  const int last = process.layers_left - 1;
  OnLife(process, Draw(options_.layer_time_max),
         [this, &process, last] { Backward(process, last); });
}

void SimulatedCluster::Backward(Process& process, int layer) {
  Outbox out;
  Push(process, layer, out);
  Execute(process, out);
  if (layer == 0) return;
  OnLife(process, Draw(options_.layer_time_max),
         [this, &process, layer] { Backward(process, layer - 1); });
}

void SimulatedCluster::Push(Process& process, int layer, Outbox& out) {
  const auto parameters = Floats(process.parameters[layer]);
  absl::Status status;
  if (GaveFactors(layer)) {
    workload_.factors(process.rank, process.step, layer, parameters,
                      Floats(process.output_gradients[layer]),
                      Floats(process.inputs[layer]));
    status = process.worker->OnPushFactors(
        layer, process.step,
        FactorBuffers{process.output_gradients[layer], process.inputs[layer],
                      process.gradients[layer]},
        out);
  } else {
    workload_.gradient(process.rank, process.step, layer, parameters,
                       Floats(process.gradients[layer]));
    status = process.worker->OnPush(layer, process.step,
                                    process.gradients[layer], out);
  }
  failure_.Update(status);
}

void SimulatedCluster::OnLayerDone(Process& process, const LayerDone& done) {
  NEREUS_CHECK(done.round == process.step)
      << "layer " << done.layer << " is done with round " << done.round
      << " in step " << process.step;
  CheckOutcome(process, done);
  if (--process.layers_left == 0) OnStepDone(process);
}

void SimulatedCluster::CheckOutcome(const Process& process,
                                    const LayerDone& done) {
  const Job& job = *process.member->start()->job;
  const bool means =
      job.options.optimizer_place == OptimizerPlace::kWorker &&
      done.round > job.workers[job.PositionOf(process.rank)].first_step - 1;
  const uint32_t sum = Checksum(means ? process.gradients[done.layer]
                                      : process.parameters[done.layer]);
  // Means and parameters of one round are different things.
  const int key = done.layer * 2 + (means ? 1 : 0);
  Compare(process, key, done.round, sum);
  if (on_outcome_ != nullptr && done.round >= 0) {
    on_outcome_(process.rank, done.layer, done.round);
  }
}

void SimulatedCluster::Compare(const Process& process, int key, int64_t round,
                               uint32_t sum) {
  // One that counts as dead, but has not heard, may have got further than those
  // who went on without it.
  const auto counts = [&](const Process& p) {
    return p.alive && job().PositionOf(p.rank) >= 0;
  };
  if (!counts(process)) return;
  const auto [found, first] =
      outcomes_.try_emplace({key, round}, Recorded{process.id, sum});
  Recorded& recorded = found->second;
  if (!counts(*processes_[recorded.by])) recorded = {process.id, sum};
  if (recorded.sum == sum) return;
  failure_.Update(absl::InternalError(absl::StrCat(
      "layer ", key / 2, ", round ", round, ": workers ", process.rank, " and ",
      processes_[recorded.by]->rank, " have different ",
      key % 2 == 0 ? "parameters" : "mean gradients")));
}

void SimulatedCluster::OnStepDone(Process& process) {
  progress_at_ = events_.now();
  const Job& job = *process.member->start()->job;
  const bool optimizes = job.options.optimizer_place == OptimizerPlace::kWorker;
  const int position = job.PositionOf(process.rank);
  if (optimizes && position >= 0 &&
      process.step >= job.workers[position].first_step) {
    UpdateParameters(process);
  }
  ++process.step;
  process.fetching = false;
  process.idle = true;
  TryStep(process);
}

void SimulatedCluster::UpdateParameters(Process& process) {
  const OptimizerOptions& optimizer = options_.job.optimizer;
  for (size_t i = 0; i < process.parameters.size(); ++i) {
    float* const parameters = process.parameters[i].floats();
    ApplyOptimizer(optimizer, process.step, process.parameters[i].float_count(),
                   1.0f, process.gradients[i].floats(), parameters,
                   process.states[i].floats(), parameters);
    Compare(process, static_cast<int>(i) * 2, process.step,
            Checksum(process.parameters[i]));
  }
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
  const JobStatus status = coordinator_.Status(events_.now());
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
  return *processes_[index]->shard;
}

}  // namespace nereus
