// The part of a client that runs on the driving thread: the driver thread, or a
// caller's thread that waits. Read in this order: Join and what it starts; the
// caller's calls, each of which posts an event; and the events that the
// machine, the coordinator and the clock bring (OnLayerDone and below).
//
// A call that begins a step, pushes or leaves carries the life in which the
// caller made it. The job may have gone back before the driving thread runs the
// call: then the machine is another one, and the call is dropped. Until the
// caller calls BeginStep, its calls return kOutOfRange.

#include "worker/client/worker_process.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Longest time that a description of what is missing may take.
constexpr absl::Duration kDescribeTimeout = absl::Seconds(5);

}  // namespace

WorkerProcess::WorkerProcess(const HostClientOptions& options,
                             const std::vector<HostLayerBinding>& layers,
                             const std::vector<LayerSpec>& specs,
                             std::shared_ptr<RoundTable> rounds,
                             TurnGuard* turns)
    : options_(options),
      layers_(layers),
      rounds_(std::move(rounds)),
      turns_(turns),
      meter_(specs),
      pages_(static_cast<int>(specs.size()), meter_, *rounds_,
             options.add_metrics),
      factors_(specs.size()) {}

WorkerProcess::~WorkerProcess() = default;

absl::Status WorkerProcess::Join(std::vector<LayerSpec> specs) {
  const ClientOptions& client = options_.client;
  control_ = NEREUS_TRY(ControlServer::Start(client.address.listen_host(),
                                             client.address.control_port, {}));
  NEREUS_TRY(pages_.Listen(client.address));
  MemberProcess::Options options;
  options.transport = {.host = client.address.host,
                       .listen = client.address.listen,
                       .port = client.address.data_port,
                       .shared_memory = client.shared_memory};
  options.node = client.node;
  options.coordinator_address = client.coordinator_address;
  options.connect_timeout = client.connect_timeout;
  options.layers = static_cast<int>(layers_.size());
  options.stall_threshold = client.stall_threshold;
  process_ =
      NEREUS_TRY(MemberProcess::Listen(std::move(options), control_.get()));
  meter_.set_recorder(&process_->recorder());
  if (options_.traced != nullptr) process_->AddSpanSource(options_.traced);
  JoinRequest request = MakeRequest(std::move(specs));
  ChangeLogContext([&](LogContext& context) {
    context.job = request.job;
    context.role = "worker";
    context.name = request.name;
  });
  NEREUS_LOG(Info) << "listening control="
                   << JoinHostPort(client.address.host, control_->port())
                   << " data=" << process_->data_address();
  process_->Join(std::move(request), MakeEvents());
  return absl::OkStatus();
}

JoinRequest WorkerProcess::MakeRequest(std::vector<LayerSpec> specs) const {
  const ClientOptions& client = options_.client;
  const LayerBinding& first = layers_.front().layer;
  JoinRequest request;
  request.job = client.job;
  request.role = Role::kWorker;
  request.name = client.name.empty() ? UniqueName() : client.name;
  request.launch_rank = client.rank;
  request.settings = client.settings;
  request.caller.optimizer = client.optimizer;
  request.caller.scales_loss = client.scales_loss;
  request.layers = std::move(specs);
  request.caller.state_arrays =
      static_cast<int32_t>(first.state.size() / first.parameters.size());
  const std::string device = options_.compute->name();
  if (!device.empty()) request.products = device;
  if (turns_ != nullptr) request.turn_base = turns_->FirstBase();
  if (client.share.weight != 1) {
    request.settings.push_back(
        {"--share-weight", absl::StrCat(client.share.weight)});
  }
  return request;
}

MemberProcess::Events WorkerProcess::MakeEvents() {
  MemberProcess::Events events;
  events.make_machine = [this](const EpochStart& start, Outbox& out) {
    return MakeMachine(start, out);
  };
  events.driver.layer_done = [this](const LayerDone& done) {
    OnLayerDone(done);
  };
  events.driver.part_done = options_.part_done;
  events.driver.compute = options_.compute.get();
  events.driver.probed = [this](const ProbeAnswered& probed) {
    meter_.OnAnswer(probed.train);
  };
  events.driver.entered =
      [this](const std::shared_ptr<const EpochStart>& start) {
        OnEntered(start);
      };
  events.driver.ended = [this](const absl::Status& outcome) {
    rounds_->Use([&](StepLedger& ledger) { ledger.End(outcome); });
    GiveTurnIfIdle();
  };
  events.heard = [this](const CoordinatorMessage& message) {
    OnHeard(message);
  };
  events.take_stock = [this] { return TakeStock(); };
  events.heartbeat = [this](Heartbeat& heartbeat) {
    UpdateHeartbeat(heartbeat);
    pages_.OnHeartbeat(heartbeat, *process_);
  };
  return events;
}

std::unique_ptr<Machine> WorkerProcess::MakeMachine(const EpochStart& start,
                                                    Outbox& out) {
  // A new machine begins a new life. From now on calls of the last life are
  // dropped.
  const int64_t life = rounds_->Use(
      [&](StepLedger& ledger) { return ledger.Restart(start.job->epoch); });
  GiveTurnIfIdle();
  if (job_ == nullptr) {
    rank_ = start.self.rank;
    job_ = start.job;
    if (turns_ != nullptr) turns_->SetIdentity(job_->id, rank_);
  }
  std::vector<LayerMemory> memory;
  const Compute& compute = *options_.compute;
  for (const HostLayerBinding& binding : layers_) {
    const LayerBinding& layer = binding.layer;
    const auto index = static_cast<int>(memory.size());
    memory.push_back(
        {rounds_->BorrowForLife(layer.parameters, binding.device),
         rounds_->BorrowForLife(layer.state, binding.device),
         options_.client.means_in_place, !compute.SplitsOnDevice(index),
         /*multiplies_on_host=*/compute.name().empty(), binding.device});
  }
  auto machine =
      std::make_unique<WorkerMachine>(start.job, rank_, std::move(memory));
  caller_.OnMachine(machine.get(), life, out);
  return machine;
}

// ---- The caller's calls.

void WorkerProcess::FreeValues() {
  process_->Post([this](Outbox& out) { caller_.OnValuesFree(out); });
}

void WorkerProcess::BeginStep(const StepLedger::Call& call) {
  process_->Post([this, call](Outbox& out) {
    TellBegun(caller_.OnBegin(call, rank_, out));
  });
}

// The caller's thread has checked the push, so the machine cannot refuse it.
void WorkerProcess::Push(int layer, int64_t step,
                         const StepLedger::Pushed& pushed, bool is_fit,
                         Buffer gradient, Buffer mean) {
  process_->Post([this, layer, step, pushed, is_fit,
                  gradient = std::move(gradient),
                  mean = std::move(mean)](Outbox& out) mutable {
    WorkerMachine* const machine = caller_.machine(pushed.life);
    if (machine == nullptr) return;
    const absl::Status status =
        machine->OnPush(layer, step, std::move(gradient), out, is_fit,
                        pushed.loss_scale, std::move(mean));
    NEREUS_CHECK(status.ok()) << status;
  });
}

void WorkerProcess::PushFactors(int layer, int64_t step,
                                const StepLedger::Pushed& pushed, bool is_fit,
                                FactorBuffers factors) {
  process_->Post([this, layer, step, pushed, is_fit,
                  factors = std::move(factors)](Outbox& out) mutable {
    WorkerMachine* const machine = caller_.machine(pushed.life);
    if (machine == nullptr) return;
    const absl::Status status = machine->OnPushFactors(
        layer, step, std::move(factors), out, is_fit, pushed.loss_scale);
    NEREUS_CHECK(status.ok()) << status;
  });
}

void WorkerProcess::Hurry(int layer) {
  process_->Post(
      [this, layer](Outbox& out) { caller_.machine()->OnHurry(layer, out); });
}

void WorkerProcess::WantCheckpoint() {
  process_->Post([this](Outbox& out) {
    Heartbeat now;
    UpdateHeartbeat(now);
    process_->member().OnWantCheckpoint(now.begun_step, out);
  });
}

void WorkerProcess::SetFactorRows(FactorRows report) {
  process_->Post([this, report = std::move(report)](Outbox& out) {
    process_->member().OnFactorRows(report, out);
  });
}

void WorkerProcess::Gather() {
  process_->Post([this](Outbox&) { SendGather(); });
}

// Takes the value from the ledger and not from the caller's call: the job may
// have gone back since the call.
void WorkerProcess::SendGather() {
  const auto gather = rounds_->Use(
      [](StepLedger& ledger) { return ledger.gathering().Unanswered(); });
  if (gather.has_value()) process_->Send(*gather);
}

void WorkerProcess::Fail(const std::string& reason) {
  process_->Post([this, reason](Outbox& out) {
    process_->member().OnFailure(reason, out);
  });
}

void WorkerProcess::Leave(const StepLedger::Call& last, bool early) {
  process_->Post([this, last, early](Outbox& out) {
    WorkerMachine* const machine = caller_.machine(last.life);
    if (machine == nullptr) return;
    caller_.OnLeave();
    machine->OnLeave(out);
    process_->member().OnLeave(last.step, early, out);
  });
}

// Posts an event that does nothing: any event makes the waiting thread look at
// its condition again.
void WorkerProcess::Wake() {
  process_->Post([](Outbox&) {});
}

std::shared_ptr<const EpochStart> WorkerProcess::epoch() const {
  MutexLock lock(&mu_);
  return epoch_;
}

std::string WorkerProcess::DescribeMissing(int layer, absl::Duration timeout) {
  // Shared with the event, which may run after this call has given up.
  struct Answer {
    Mutex mu;
    std::optional<std::string> missing ABSL_GUARDED_BY(mu);
  };
  auto answer = std::make_shared<Answer>();
  process_->Post([this, layer, answer](Outbox&) {
    std::string missing = caller_.machine()->Missing(layer);
    MutexLock lock(&answer->mu);
    answer->missing = std::move(missing);
  });
  MutexLock lock(&answer->mu);
  const auto is_told = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer->mu) {
    return answer->missing.has_value();
  };
  if (!answer->mu.AwaitWithTimeout(is_told,
                                   std::min(timeout, kDescribeTimeout))) {
    return "unknown, this worker's driver is busy";
  }
  return answer->missing->empty() ? "nothing any more" : *answer->missing;
}

ClientReport WorkerProcess::Report() const {
  const auto start = epoch();
  const LayerTraffic& traffic = process_->driver().traffic();
  ClientReport report;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const Route& route = start->job->routes[i];
    const RoundTable::Cost cost = rounds_->cost(layer);
    report.layers.push_back(
        {layers_[i].layer.spec.name, std::string(SchemeName(route.scheme)),
         std::string(WireTypeName(route.wire)), start->explanations[i].reason,
         cost.rounds, traffic.bytes_sent(layer), traffic.bytes_received(layer),
         cost.latency_total});
  }
  for (const TrafficCount& count : process_->transport().traffic()) {
    report.peers.push_back({count.peer.role == Role::kShard, count.peer.rank,
                            count.bytes_sent, count.bytes_received});
  }
  report.measured = meter_.last();
  report.turn_time = meter_.phases().times.turn;
  MutexLock lock(&mu_);
  report.saved_round = saved_round_;
  return report;
}

// ---- Events.

void WorkerProcess::OnLayerDone(const LayerDone& done) {
  if (options_.done != nullptr) {
    // Called before the ledger knows that the round is done, so that the Wait
    // for the round returns after `done`.
    const bool is_fetched = rounds_->Use([&](const StepLedger& ledger) {
      return ledger.pushed(done.layer) < kInitialRound ||
             ledger.IsDone(done.layer, done.round);
    });
    options_.done(done, is_fetched);
  }
  rounds_->Finish(done.layer, done.round, done.skipped, SteadyNow(), done.mean);
  RetryBegin();
  ProbeIfIdle();
}

void WorkerProcess::OnEntered(const std::shared_ptr<const EpochStart>& start) {
  const Job& job = *start->job;
  const int64_t first_step = job.history.first_step;
  ChangeLogContext([&](LogContext& context) {
    context.rank = start->self.rank;
    context.epoch = static_cast<int64_t>(job.epoch);
  });
  NEREUS_LOG(Info, {LogEvent::kEpoch, first_step})
      << "epoch " << job.epoch << ": workers=" << job.worker_count()
      << " position=" << job.PositionOf(start->self.rank)
      << " first_step=" << first_step;
  caller_.OnEntered(start->job);
  pages_.OnEpoch(job.routes, process_->driver().traffic());
  probe_plan_ = PlanProbes(*start);
  meter_.OnEpoch(probe_plan_);
  for (size_t layer = 0; layer < factors_.size(); ++layer) {
    factors_[layer].rows = job.layers[layer].rows;
    factors_[layer].are_sent = job.routes[layer].scheme == Scheme::kFactor;
  }
  {
    MutexLock lock(&mu_);
    epoch_ = start;
  }
  RetryBegin();
}

void WorkerProcess::GiveTurnIfIdle() {
  if (turns_ != nullptr) turns_->Note(*rounds_, /*waits=*/false);
}

void WorkerProcess::OnHeard(const CoordinatorMessage& message) {
  if (std::holds_alternative<Waiting>(message)) rounds_->NoteWaiting();
  if (const auto* over = std::get_if<JobOver>(&message)) {
    MutexLock lock(&mu_);
    if (over->saved_round > kInitialRound) saved_round_ = over->saved_round;
  }
  if (const auto* gathered = std::get_if<Gathered>(&message)) {
    rounds_->Use(
        [&](StepLedger& ledger) { ledger.gathering().OnGathered(*gathered); });
  }
  if (const auto* set = std::get_if<SetFusion>(&message)) {
    process_->Post([this, set = *set](Outbox&) { caller_.OnSetFusion(set); });
  }
  if (const auto* rule = std::get_if<TurnRule>(&message);
      rule != nullptr && turns_ != nullptr) {
    turns_->SetRule(*rule);
  }
  if (std::holds_alternative<AskToLeave>(message)) should_leave_ = true;
}

Heartbeat WorkerProcess::TakeStock() {
  // Sends the value again: the message or its answer may have been lost with a
  // session.
  SendGather();
  Heartbeat heartbeat;
  if (const auto epoch = this->epoch()) heartbeat.epoch = epoch->job->epoch;
  if (caller_.machine() != nullptr) {
    caller_.machine()->OnHeartbeat();
    heartbeat.stall = caller_.machine()->OldestWait();
  }
  return heartbeat;
}

void WorkerProcess::UpdateHeartbeat(Heartbeat& heartbeat) const {
  rounds_->Use([&](const StepLedger& ledger) {
    heartbeat.begun_step = std::max(ledger.next_step() - 1, kInitialRound);
    heartbeat.pushed_step = ledger.pushed_step();
    heartbeat.round = ledger.round();
  });
  const Activity phases = meter_.phases();
  heartbeat.activity.steps = phases.steps;
  heartbeat.activity.times = phases.times;
  heartbeat.went_back_in = rounds_->Use(
      [](StepLedger& ledger) { return ledger.gathering().went_back_in(); });
}

// Reports measurements of earlier steps, and then lets the caller go on.
void WorkerProcess::TellBegun(std::optional<StepInfo> begun) {
  if (!begun.has_value()) return;
  if (const auto timed = caller_.TimeFusion(begun->step, SteadyNow())) {
    process_->Send(*timed);
  }
  if (job_->options.measure) {
    if (auto due = meter_.TakeDue()) {
      process_->Send(Measured{std::move(due->times), due->step_time, due->link,
                              due->memory_rate, due->waits_in_forward,
                              rounds_->TakeSyncTimes()});
    }
  }
  rounds_->Use([&](StepLedger& ledger) {
    if (job_->options.scale_loss) begun->loss_scale = ledger.loss_scale();
    begun->should_leave = should_leave_;
    ledger.Begin(*begun);
  });
}

// Posts the retry as an event of its own, because this function runs within an
// event of the machine.
void WorkerProcess::RetryBegin() {
  if (!caller_.is_waiting()) return;
  process_->Post(
      [this](Outbox& out) { TellBegun(caller_.OnRetry(rank_, out)); });
}

// Sends probes between rounds only: the network is free then, so probes measure
// it and disturb no round.
void WorkerProcess::ProbeIfIdle() {
  const bool is_idle =
      rounds_->Use([](const StepLedger& ledger) { return ledger.IsIdle(); });
  if (!job_->options.measure || !is_idle) return;
  const auto train = meter_.NextTrain();
  if (!train.has_value()) return;
  const uint64_t epoch = process_->member().start()->job->epoch;
  process_->Post([this, epoch, train = *train](Outbox& out) {
    // In another epoch the train is lost: the plan may have changed.
    if (process_->member().start()->job->epoch != epoch) return;
    caller_.machine()->Probe(probe_plan_.target, train.id, train.frames,
                             train.payload_bytes, out);
  });
}

}  // namespace nereus
