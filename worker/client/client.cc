#include "worker/public/client.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/driver/factor_multiplier.h"
#include "common/driver/gradient_splitter.h"
#include "common/driver/machine_driver.h"
#include "common/protocol/member.h"
#include "common/protocol/stall_watch.h"
#include "common/rpc/control_server.h"
#include "common/rpc/session_client.h"
#include "common/transport/socket/socket_transport.h"
#include "worker/client/gradient_look.h"
#include "worker/client/job_notes.h"
#include "worker/client/layer_bindings.h"
#include "worker/client/round_table.h"
#include "worker/machine/fusion_switch.h"
#include "worker/machine/step_plan.h"
#include "worker/machine/worker_machine.h"
#include "worker/measure/meter.h"

namespace nereus {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(5);

// A worker's side of a job: the machine and what drives it.
//
//   caller's threads --Post--> whoever drives (member, machine, arithmetic)
//          ^                        |    ^                   |
//          '------ RoundTable <-----'    session          transport
//
// A caller that waits drives itself meanwhile (MachineDriver::DriveUntil).
class ClientImpl final : public Client {
 public:
  ClientImpl(const ClientOptions& options, std::vector<LayerBinding> layers)
      : options_(options),
        layers_(std::move(layers)),
        rounds_(std::make_shared<RoundTable>(NamesOf(layers_))),
        meter_(SpecsIn(layers_)) {}
  ~ClientImpl() override;

  // Joins and connects; the first values are there when it returns.
  absl::Status Start(const std::vector<LayerSpec>& specs);

  int rank() const override { return rank_; }
  absl::Status WaitAll(int64_t step) override;
  absl::StatusOr<StepInfo> BeginStep() override;
  absl::Status Push(int layer, int64_t step,
                    absl::Span<float> gradient) override;
  absl::Status PushArriving(int layer, int64_t step, absl::Span<float> gradient,
                            const std::shared_ptr<Arrival>& arrival) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient) override;
  absl::Status Wait(int layer, int64_t step) override;
  absl::Status WaitForward(int layer) override;
  absl::Status Hurry(int layer) override;
  absl::Status Interruption() const override { return rounds_->interruption(); }
  absl::Status Abort(absl::string_view reason) override {
    return FailJob(std::string(reason));
  }
  bool decoupled() const override { return job_->decoupled(); }
  bool sparse() const override { return job_->options.sparsity > 0; }
  bool Skipped(int64_t step) const override { return rounds_->Skipped(step); }
  bool may_skip() const override { return job_->votes(); }
  bool takes_factors(int layer) const override;
  bool takes_bfloat16(int layer) const override;
  absl::Span<const float> Mean(int layer) const override {
    return rounds_->Mean(layer);
  }
  bool updates_parameters() const override {
    return job_->options.optimizer_place == OptimizerPlace::kWorker;
  }
  const OptimizerOptions& optimizer() const override {
    return job_->options.optimizer;
  }
  std::vector<LayerReport> layer_reports() const override;
  std::vector<PeerTraffic> traffic() const override;
  std::optional<Measurements> measurements() const override {
    return meter_.last();
  }
  absl::Status Checkpoint() override;
  std::optional<int64_t> saved_round() const override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Leave() override;

 private:
  absl::Status Listen();
  void MakeMember(std::vector<LayerSpec> specs);
  std::unique_ptr<Machine> MakeMachine(const EpochStart& start, Outbox& out);
  void StartDriver();
  void StartSession();
  void OnEntered(const std::shared_ptr<const EpochStart>& start);
  // False if a value is NaN or infinite, and that is to cost the step; an error
  // if it is to end the job, which it does, or never will be there. Waits until
  // all are there, or found fit by whoever makes them.
  absl::StatusOr<bool> IsFit(int layer, int64_t step, absl::string_view what,
                             absl::Span<const float> values, Arrival* arrival);
  absl::StatusOr<RoundTable::Pushed> BeginPush(int layer, int64_t step,
                                               absl::Span<const float> gradient)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the job for all; returns the reason, once they hear.
  absl::Status FailJob(const std::string& reason);
  // Until the caller's values are the job's, also if it goes back meanwhile.
  absl::Status AwaitValues();
  void StartMachine(Outbox& out);
  void TryBegin(int64_t step, Outbox& out);
  // If the caller waits for that: something has changed.
  void TryBeginAgain();
  // Sends probes, if nothing else is under way.
  void ProbeIfQuiet();
  // Says now and then what they and the caller's steps have come to.
  void SayMeasured();
  // A step has begun, maybe with another threshold.
  void FollowFusion(int64_t step);
  void TakeStock() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const EpochStart> Plan() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return plan_;
  }
  std::string DescribeMissing(int layer);

  // Constant after Start: model and options are the same in all epochs.
  const ClientOptions options_;
  const std::vector<LayerBinding> layers_;
  int rank_ = 0;
  JobPtr job_;
  const std::shared_ptr<RoundTable> rounds_;  // Shared with the buffers lent.
  Meter meter_;
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<Transport> transport_;

  // Of whoever drives.
  std::unique_ptr<Member> member_;
  WorkerMachine* machine_ = nullptr;  // The member's.
  StepPlan steps_;
  int64_t life_ = 0;         // Counts its machines.
  int64_t begun_life_ = 0;   // In which the caller has begun its last step.
  bool is_started_ = false;  // The last one may write the caller's values.
  std::optional<int64_t> begins_;  // A step that the caller waits to begin.
  StallWatch stalls_;
  FusionSwitch fusion_;
  std::vector<int32_t> probed_servers_;

  std::unique_ptr<SessionClient> session_;
  std::unique_ptr<MachineDriver> driver_;

  mutable Mutex mu_;
  std::optional<Stall> stall_ ABSL_GUARDED_BY(mu_);
  std::optional<int64_t> saved_round_ ABSL_GUARDED_BY(mu_);
  // The epoch's. They change between the caller's steps alone.
  std::shared_ptr<const EpochStart> plan_ ABSL_GUARDED_BY(mu_);
};

ClientImpl::~ClientImpl() {
  // The session posts to the driver, and the driver sends in the session.
  if (driver_ != nullptr) driver_->Stop();
  session_.reset();
  driver_.reset();
  if (transport_ != nullptr) transport_->Shutdown(absl::ZeroDuration());
  member_.reset();
  transport_.reset();
  if (!rounds_->AwaitReturned(kFlushTimeout)) {
    NEREUS_LOG(Error) << "the caller's memory is still in use after closing "
                         "all connections";
  }
}

absl::Status ClientImpl::Listen() {
  const std::string& host = options_.host;
  NEREUS_ASSIGN_OR_RETURN(
      control_, ControlServer::Start(host, options_.control_port, {}));
  TransportOptions transport = {.host = host, .port = options_.data_port};
  transport.shared_memory = options_.shared_memory;
  NEREUS_ASSIGN_OR_RETURN(transport_, SocketTransport::Start(transport));
  NEREUS_LOG(Info) << "listening control="
                   << JoinHostPort(host, control_->port())
                   << " data=" << JoinHostPort(host, transport_->port());
  return absl::OkStatus();
}

absl::Status ClientImpl::Start(const std::vector<LayerSpec>& specs) {
  NEREUS_RETURN_IF_ERROR(Listen());
  MakeMember(specs);
  StartDriver();
  StartSession();
  NEREUS_RETURN_IF_ERROR(AwaitValues());
  if (job_->model() != absl::MakeConstSpan(specs)) {
    return absl::InternalError(
        "the coordinator started an epoch with another model than this worker "
        "joined with");
  }
  control_->SetReady(true);
  LogJoined(options_.job, job_->options, !layers_.front().state.empty());
  return absl::OkStatus();
}

void ClientImpl::MakeMember(std::vector<LayerSpec> specs) {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = options_.job;
  request.role = Role::kWorker;
  request.incarnation = DrawUniqueId();
  request.name = options_.name.empty() ? UniqueName() : options_.name;
  request.settings = options_.settings;
  request.optimizer = options_.optimizer;
  request.data_address = JoinHostPort(options_.host, transport_->port());
  request.layers = std::move(specs);
  if (options_.multiplier != nullptr) {
    request.products = options_.multiplier->name();
  }
  const LayerBinding& first = layers_.front();
  request.state_arrays =
      static_cast<int32_t>(first.state.size() / first.parameters.size());
  member_ = std::make_unique<Member>(
      std::move(request), [this](const EpochStart& start, Outbox& out) {
        return MakeMachine(start, out);
      });
}

std::unique_ptr<Machine> ClientImpl::MakeMachine(const EpochStart& start,
                                                 Outbox& out) {
  life_ = rounds_->Restart();
  begins_.reset();
  if (job_ == nullptr) {
    rank_ = start.self.rank;
    job_ = start.job;
  }
  std::vector<LayerMemory> memory;
  for (const LayerBinding& layer : layers_) {
    memory.push_back({rounds_->Lend(layer.parameters, layer.arrival),
                      rounds_->Lend(layer.state, layer.arrival),
                      options_.means_in_place, layer.splitter == nullptr});
  }
  auto machine =
      std::make_unique<WorkerMachine>(start.job, rank_, std::move(memory));
  machine_ = machine.get();
  // Later on, the caller may be using the values: it says when it is not.
  is_started_ = life_ == 1;
  if (is_started_) machine->Start(out);
  return machine;
}

void ClientImpl::StartDriver() {
  MachineDriver::Events events;
  events.layer_done = [this](const LayerDone& done) {
    if (options_.done != nullptr) {
      // Again, of what is done: for another plan.
      const bool fetched = rounds_->pushed(done.layer) < kInitialRound ||
                           rounds_->IsDone(done.layer, done.round);
      options_.done(done.layer, done.round, fetched);
    }
    rounds_->Finish(done.layer, done.round, done.skipped, SteadyNow(),
                    done.mean);
    TryBeginAgain();
    ProbeIfQuiet();
  };
  if (options_.multiplier != nullptr) {
    events.multiply = [this](const MultiplyFactors& factors) {
      return options_.multiplier->Multiply(factors);
    };
  }
  events.splitter = [this](int layer) { return layers_[layer].splitter.get(); };
  events.probed = [this](const ProbeAnswered& probed) {
    meter_.OnAnswer(probed.train);
  };
  events.send_message = [this](const MemberMessage& message) {
    session_->Send(message);
  };
  events.entered = [this](const std::shared_ptr<const EpochStart>& start) {
    OnEntered(start);
  };
  events.ended = [this](const absl::Status& outcome) { rounds_->End(outcome); };
  driver_ = std::make_unique<MachineDriver>(
      transport_.get(), member_.get(), static_cast<int>(layers_.size()),
      options_.connect_timeout, std::move(events));
}

void ClientImpl::StartSession() {
  const SessionClientOptions session_options = {options_.coordinator_address,
                                                options_.connect_timeout,
                                                options_.connect_timeout};
  SessionClient::Events events;
  events.opened = [this] {
    driver_->Post([this](Outbox& out) { member_->OnSession(out); });
  };
  events.message = [this](const CoordinatorMessage& message) {
    if (const auto* waiting = std::get_if<Waiting>(&message)) {
      NEREUS_LOG(Info) << waiting->text;
      rounds_->NoteWaiting();
    }
    if (const auto* over = std::get_if<JobOver>(&message)) {
      MutexLock lock(&mu_);
      if (over->saved_round > kInitialRound) saved_round_ = over->saved_round;
    }
    driver_->Post([this, message](Outbox& out) {
      const auto* set = std::get_if<SetFusion>(&message);
      if (set != nullptr) return fusion_.OnSet(*set);
      member_->OnMessage(message, out);
    });
  };
  events.heartbeat = [this]() -> std::optional<Heartbeat> {
    const Pulse::Beat beat =
        driver_->OnHeartbeatDue([this](Outbox&) { TakeStock(); });
    control_->SetAlive(beat.is_alive);
    if (!beat.is_alive) return std::nullopt;
    Heartbeat heartbeat;
    heartbeat.begun_step = std::max(rounds_->next_step() - 1, kInitialRound);
    heartbeat.round = rounds_->round();
    heartbeat.busy = beat.is_busy;
    MutexLock lock(&mu_);
    heartbeat.stall = stall_;
    return heartbeat;
  };
  events.failed = [this](const absl::Status& why) {
    rounds_->End(why);
    driver_->Post([](Outbox&) {});  // A caller that drives is to see it.
  };
  session_ =
      std::make_unique<SessionClient>(session_options, std::move(events));
  session_->Start();
}

void ClientImpl::OnEntered(const std::shared_ptr<const EpochStart>& start) {
  const Job& job = *start->job;
  NEREUS_LOG(Info) << "epoch " << job.epoch
                   << ": workers=" << job.worker_count()
                   << " position=" << job.PositionOf(start->self.rank)
                   << " first_step=" << job.first_step;
  steps_.Enter(start->job);
  probed_servers_ =
      ShardsToProbe(*start, JoinHostPort(options_.host, transport_->port()));
  {
    MutexLock lock(&mu_);
    plan_ = start;
  }
  TryBeginAgain();
}

absl::StatusOr<StepInfo> ClientImpl::BeginStep() {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckComplete(/*or_untouched=*/false));
  while (true) {
    NEREUS_RETURN_IF_ERROR(AwaitValues());
    const auto next = rounds_->step_to_begin();
    if (absl::IsOutOfRange(next.status())) continue;
    NEREUS_RETURN_IF_ERROR(next.status());
    driver_->Post([this, next = *next](Outbox& out) {
      // Else the job has gone back: the caller asks again when it knows.
      if (next.life == life_) TryBegin(next.step, out);
    });
    driver_->DriveUntil([&] { return rounds_->HasBegun(next->step); },
                        absl::InfiniteFuture());
    absl::StatusOr<StepInfo> begun = rounds_->AwaitBegin(next->step);
    if (absl::IsOutOfRange(begun.status())) continue;
    meter_.OnBegin();
    return begun;
  }
}

absl::Status ClientImpl::AwaitValues() {
  while (true) {
    const absl::Status fetched = rounds_->AwaitFirstValues();
    if (!absl::IsOutOfRange(fetched)) return fetched;
    // The job has gone back: the caller uses no values now.
    NEREUS_RETURN_IF_ERROR(rounds_->Acknowledge());
    driver_->Post([this](Outbox& out) { StartMachine(out); });
  }
}

void ClientImpl::StartMachine(Outbox& out) {
  if (is_started_) return;
  is_started_ = true;
  machine_->Start(out);
}

void ClientImpl::TryBegin(int64_t step, Outbox& out) {
  begins_.reset();
  if (machine_->BeginStep(step, out)) {
    FollowFusion(step);
    if (job_->options.measure) SayMeasured();
    StepInfo info = steps_.InfoOf(step, rank_);
    if (job_->options.scale_loss) info.loss_scale = rounds_->loss_scale();
    info.went_back = begun_life_ > 0 && begun_life_ != life_;
    begun_life_ = life_;
    rounds_->Begin(info);
  } else {
    begins_ = step;  // Once the next epoch has begun.
  }
}

void ClientImpl::ProbeIfQuiet() {
  if (!job_->options.measure || !rounds_->IsIdle()) return;
  const auto train = meter_.NextTrain();
  if (!train.has_value()) return;
  driver_->Post([this, train = *train](Outbox& out) {
    // The workers' servers are different ones, as far as there are so many.
    const auto position =
        static_cast<size_t>(member_->start()->job->PositionOf(rank_));
    machine_->Probe(probed_servers_[position % probed_servers_.size()],
                    train.id, train.frames, train.payload_bytes, out);
  });
}

void ClientImpl::SayMeasured() {
  std::optional<Measurements> due = meter_.TakeDue();
  if (!due.has_value()) return;
  session_->Send(Measured{std::move(due->times), due->step_time, due->link});
}

bool ClientImpl::takes_factors(int layer) const {
  if (!rounds_->CheckLayer(layer).ok()) return false;
  return Plan()->job->routes[layer].scheme == Scheme::kFactor;
}

bool ClientImpl::takes_bfloat16(int layer) const {
  const JobOptions& options = job_->options;
  if (!rounds_->CheckLayer(layer).ok() || job_->votes() ||
      options.sparsity > 0 || options.scale_loss) {
    return false;
  }
  const Route route = Plan()->job->routes[layer];
  return route.scheme == Scheme::kServer && route.wire == WireType::kBfloat16;
}

void ClientImpl::TryBeginAgain() {
  if (!begins_.has_value()) return;
  driver_->Post([this](Outbox& out) {
    if (begins_.has_value()) TryBegin(*begins_, out);
  });
}

void ClientImpl::FollowFusion(int64_t step) {
  if (const auto bytes = fusion_.OnBegin(step)) machine_->SetFusion(*bytes);
  const auto timed = fusion_.OnBegin(step, SteadyNow());
  if (timed.has_value()) session_->Send(*timed);
}

absl::StatusOr<bool> ClientImpl::IsFit(int layer, int64_t step,
                                       absl::string_view what,
                                       absl::Span<const float> values,
                                       Arrival* arrival) {
  if (job_->options.nan == NanPolicy::kIgnore) return true;
  const std::string name = absl::StrCat("layer ", job_->layers[layer].name,
                                        ", step ", step, ": ", what);
  const absl::StatusOr<NotFinite> found = FindNotFinite(values, arrival);
  if (!found.ok()) {
    return FailJob(
        absl::StrCat(name, " does not come: ", found.status().message()));
  }
  if (found->index < 0) return true;
  const std::string reason =
      absl::StrCat(name, " has ", found->value, " at element ", found->index,
                   " of ", values.size());
  if (job_->options.nan == NanPolicy::kSkip) {
    NEREUS_LOG(Warning) << reason << ": all workers skip the step";
    rounds_->NoteUnfit(step);
    // Zeros may take the place of what is still coming.
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    if (arrival != nullptr) arrival->Await(bytes).IgnoreError();
    return false;
  }
  return FailJob(reason);
}

absl::Status ClientImpl::FailJob(const std::string& reason) {
  driver_->Post(
      [this, reason](Outbox& out) { member_->OnFailure(reason, out); });
  // The caller may close the client at once: the others are to hear why before.
  driver_->DriveUntil([this] { return !rounds_->failure().ok(); },
                      SteadyNow() + kFlushTimeout);
  rounds_->AwaitOver(kFlushTimeout).IgnoreError();
  return absl::FailedPreconditionError(reason);
}

absl::StatusOr<RoundTable::Pushed> ClientImpl::BeginPush(
    int layer, int64_t step, absl::Span<const float> gradient) {
  auto pushed = rounds_->BeginPush(layer, step, SteadyNow(), gradient);
  if (pushed.ok()) meter_.OnPush(layer);
  return pushed;
}

absl::Status ClientImpl::Push(int layer, int64_t step,
                              absl::Span<float> gradient) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  NEREUS_RETURN_IF_ERROR(CheckHasNoFactors(job_->layers[layer]));
  return PushArriving(layer, step, gradient, nullptr);
}

absl::Status ClientImpl::PushArriving(int layer, int64_t step,
                                      absl::Span<float> gradient,
                                      const std::shared_ptr<Arrival>& arrival) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  const LayerSpec& spec = job_->layers[layer];
  NEREUS_RETURN_IF_ERROR(
      CheckLength(spec, "the gradient", gradient.size(), spec.parameters));
  // Before the plan, which is another one once the job has gone back.
  NEREUS_RETURN_IF_ERROR(Interruption());
  if (takes_factors(layer)) return CheckHasNoFactors(spec);
  bool fit = true;
  // Else it is looked at where it is added up: CheckValues.
  if (job_->votes() || job_->options.sparsity > 0) {
    NEREUS_ASSIGN_OR_RETURN(
        fit, IsFit(layer, step, "the gradient", gradient, arrival.get()));
  }
  NEREUS_ASSIGN_OR_RETURN(const RoundTable::Pushed pushed,
                          BeginPush(layer, step, gradient));
  Buffer buffer =
      rounds_->Borrow(layer, gradient.data(), gradient.size(), arrival);
  driver_->Post([this, pushed, layer, step, fit,
                 buffer = std::move(buffer)](Outbox& out) mutable {
    if (pushed.life != life_) return;  // The job has gone back.
    const absl::Status status = machine_->OnPush(layer, step, std::move(buffer),
                                                 out, fit, pushed.loss_scale);
    NEREUS_CHECK(status.ok()) << status;
  });
  return absl::OkStatus();
}

absl::Status ClientImpl::PushFactors(int layer, int64_t step,
                                     const Factors& factors,
                                     absl::Span<float> gradient) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  const LayerSpec& spec = job_->layers[layer];
  NEREUS_RETURN_IF_ERROR(
      CheckFactors(spec, factors, gradient, updates_parameters()));
  NEREUS_ASSIGN_OR_RETURN(
      const bool output_fit,
      IsFit(layer, step, "the output gradient", factors.output_gradient,
            /*arrival=*/nullptr));
  NEREUS_ASSIGN_OR_RETURN(
      const bool input_fit,
      IsFit(layer, step, "the input", factors.input, /*arrival=*/nullptr));
  NEREUS_ASSIGN_OR_RETURN(const RoundTable::Pushed pushed,
                          BeginPush(layer, step, gradient));
  FactorBuffers buffers{
      rounds_->Borrow(layer, factors.output_gradient.data(),
                      factors.output_gradient.size(), factors.arrival),
      rounds_->Borrow(layer, factors.input.data(), factors.input.size(),
                      factors.arrival),
      rounds_->Borrow(layer, gradient.data(), gradient.size())};
  driver_->Post([this, pushed, layer, step, fit = output_fit && input_fit,
                 buffers = std::move(buffers)](Outbox& out) mutable {
    if (pushed.life != life_) return;
    const absl::Status status = machine_->OnPushFactors(
        layer, step, std::move(buffers), out, fit, pushed.loss_scale);
    NEREUS_CHECK(status.ok()) << status;
  });
  return absl::OkStatus();
}

absl::Status ClientImpl::WaitForward(int layer) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  return Wait(layer, rounds_->pushed(layer));
}

absl::Status ClientImpl::Hurry(int layer) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  NEREUS_RETURN_IF_ERROR(Interruption());
  driver_->Post([this, layer](Outbox& out) { machine_->OnWait(layer, out); });
  return absl::OkStatus();
}

absl::Status ClientImpl::Wait(int layer, int64_t step) {
  const absl::Time from = SteadyNow();
  const bool may_be_held = !rounds_->HasPushedAll();
  if ((job_->decoupled() || may_be_held) && !rounds_->IsDone(layer, step)) {
    NEREUS_RETURN_IF_ERROR(Hurry(layer));
  }
  driver_->DriveUntil([&] { return rounds_->IsSettled(layer, step); },
                      from + options_.round_timeout);
  const absl::Status status =
      rounds_->Await(layer, step, options_.round_timeout, from);
  if (status.ok()) meter_.OnWait(layer, from);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; missing: ", DescribeMissing(layer)));
}

void ClientImpl::TakeStock() {
  if (machine_ == nullptr) return;
  std::optional<Stall> stall = stalls_.Watch(
      machine_->OldestWait(), SteadyNow(), options_.stall_threshold);
  MutexLock lock(&mu_);
  stall_ = std::move(stall);
}

std::string ClientImpl::DescribeMissing(int layer) {
  // The machine is the driver's; both hold the answer, whoever is done with it
  // last.
  auto missing = std::make_shared<std::string>();
  auto asked = std::make_shared<Notification>();
  driver_->Post([this, layer, missing, asked](Outbox&) {
    *missing = machine_->Missing(layer);
    asked->Notify();
  });
  if (!asked->WaitWithTimeout(kFlushTimeout)) {
    return "unknown, this worker's driver is busy";
  }
  return missing->empty() ? "nothing any more" : *missing;
}

absl::Status ClientImpl::WaitAll(int64_t step) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_RETURN_IF_ERROR(Wait(static_cast<int>(layer), step));
  }
  return absl::OkStatus();
}

std::vector<LayerReport> ClientImpl::layer_reports() const {
  const auto plan = Plan();
  std::vector<LayerReport> reports;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const RoundTable::Cost cost = rounds_->cost(layer);
    reports.push_back({job_->layers[i].name,
                       std::string(SchemeName(plan->job->routes[i].scheme)),
                       std::string(WireTypeName(plan->job->routes[i].wire)),
                       plan->explanations[i].reason, cost.rounds,
                       driver_->bytes_sent(layer),
                       driver_->bytes_received(layer), cost.latency_total});
  }
  return reports;
}

std::vector<PeerTraffic> ClientImpl::traffic() const {
  std::vector<PeerTraffic> traffic;
  for (const TrafficCount& count : transport_->traffic()) {
    traffic.push_back({count.peer.role == Role::kShard, count.peer.rank,
                       count.bytes_sent, count.bytes_received});
  }
  return traffic;
}

absl::Status ClientImpl::Checkpoint() {
  NEREUS_RETURN_IF_ERROR(rounds_->failure());
  if (!job_->options.has_checkpoints) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", options_.job,
                     " has no folder for checkpoints: start its servers with "
                     "--checkpoint-dir"));
  }
  driver_->Post([this](Outbox& out) { member_->WantCheckpoint(out); });
  return absl::OkStatus();
}

std::optional<int64_t> ClientImpl::saved_round() const {
  MutexLock lock(&mu_);
  return saved_round_;
}

absl::Status ClientImpl::Leave() {
  NEREUS_RETURN_IF_ERROR(rounds_->failure());
  NEREUS_RETURN_IF_ERROR(rounds_->CheckComplete(/*or_untouched=*/true));
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    NEREUS_RETURN_IF_ERROR(WaitForward(static_cast<int>(layer)));
  }
  NEREUS_ASSIGN_OR_RETURN(const RoundTable::StepOfLife last,
                          rounds_->last_step());
  driver_->Post([this, last](Outbox& out) {
    if (last.life != life_) return;  // The job has gone back.
    machine_->OnLeave(out);
    member_->OnLeave(last.step, out);
  });
  // Peers may still need frames of this worker's last round, so the connections
  // stay until the coordinator says otherwise.
  const absl::Status over = rounds_->AwaitOver(options_.round_timeout);
  if (!over.ok() && !absl::IsDeadlineExceeded(over)) return over;
  rounds_->Fail(absl::FailedPreconditionError("this worker has left the job"));
  driver_->Post([](Outbox&) {});  // A caller that drives is to see it.
  if (over.ok()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("left the job, but not all the other workers did within ",
                   absl::FormatDuration(options_.round_timeout)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options, std::vector<LayerBinding> layers) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_ASSIGN_OR_RETURN(const std::vector<LayerSpec> specs,
                          CheckedSpecsIn(layers));
  NEREUS_RETURN_IF_ERROR(CheckState(layers, options.optimizer));
  auto client = std::make_unique<ClientImpl>(options, std::move(layers));
  NEREUS_RETURN_IF_ERROR(client->Start(specs));
  return client;
}

}  // namespace nereus
