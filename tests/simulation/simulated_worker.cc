#include "tests/simulation/simulated_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/vectors.h"
#include "tests/simulation/simulated_device.h"
#include "tests/simulation/simulated_process.h"
#include "tests/simulation/simulated_world.h"
#include "worker/machine/turn_keeper.h"

// Read the functions of a step first: TryStep, Backward, Push, then OnLayerDone
// once for each layer, and OnStepDone. MakeMachine begins a life. The machine
// then sends a LayerDone with the first values of each layer, for the round
// before the worker's first step. The first TryStep follows. With
// SimulatedClusterOptions::waits_in_forward the next step begins as soon as all
// layers are pushed. Forward then waits for the layers one by one, while the
// step before it is still open.

namespace nereus {
namespace {

absl::Span<float> Floats(const Buffer& buffer) {
  return absl::MakeSpan(buffer.floats(),
                        static_cast<size_t>(buffer.float_count()));
}

Buffer AllocateFloats(int64_t count) {
  return Buffer::AllocateZeroed(count * static_cast<int64_t>(sizeof(float)));
}

LayerValues ValuesOf(const Buffer& buffer) {
  return {Floats(buffer),
          Crc32c(buffer.data(), static_cast<size_t>(buffer.bytes()))};
}

std::vector<std::string> NamesOf(const std::vector<LayerSpec>& layers) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : layers) names.push_back(layer.name);
  return names;
}

// Returns measurements drawn from a wide range. They make the coordinator
// change its plan again and again; a job that shares devices measures its true
// times. As in a job with several workers on a host,
// not every worker has measured the link or the memory.
Measured DrawMeasured(SimulatedWorld& world) {
  Measured measured;
  measured.times.resize(world.workload.layers.size());
  const bool is_shared = world.options.device_of != nullptr;
  for (LayerTime& time : measured.times) {
    time = is_shared ? LayerTime{absl::ZeroDuration(),
                                 (world.options.layer_time_min +
                                  world.options.layer_time_max) /
                                     2}
                     : LayerTime{world.Draw(absl::Milliseconds(2)),
                                 world.Draw(absl::Milliseconds(2))};
  }
  measured.step_time = absl::Milliseconds(1) + world.Draw(absl::Seconds(1));
  if (world.random.Chance(0.7)) {
    measured.link = {std::pow(10.0, 4 + 6 * world.random.Uniform()),
                     world.Draw(absl::Milliseconds(100)),
                     world.Draw(absl::Milliseconds(10))};
  }
  if (world.random.Chance(0.5)) {
    measured.memory_rate = std::pow(10.0, 5 + 6 * world.random.Uniform());
  }
  return measured;
}

}  // namespace

// A worker's place at its device.
struct SimulatedWorker::Turns {
  SimulatedDevice* const device;
  SimulatedDevice::Client* const client;  // The device owns it.
  TurnKeeper keeper;
};

SimulatedWorker::SimulatedWorker(SimulatedWorld* world,
                                 SimulatedProcess* process)
    : world_(world),
      process_(process),
      ledger_(NamesOf(world->workload.layers)) {
  if (world->options.device_of == nullptr) return;
  SimulatedDevice* const device =
      world->options.device_of(process->worker_number);
  if (device == nullptr) return;
  TurnSlot slot;
  slot.job = absl::StrCat("job ", SimulatedJobId(world->options));
  slot.job_id = SimulatedJobId(world->options);
  slot.weight = world->options.turn_weight;
  SimulatedDevice::Client& client = device->Add(
      {[this](const SimulatedDevice::Task& task) { process_->Run(task); },
       [this] { return process_->alive && !process_->is_halted(); }});
  turns_ = std::make_unique<Turns>(
      Turns{device, &client, TurnKeeper(&client.board(), std::move(slot))});
  client.Serve(&turns_->keeper.taker());
}

SimulatedWorker::~SimulatedWorker() = default;

void SimulatedWorker::OnDeath() {
  machine_ = nullptr;
  if (turns_ != nullptr) turns_->device->Kill(*turns_->client);
}

// ---- Turns at a shared device.

bool SimulatedWorker::HasTurn() const {
  return turns_ != nullptr && turns_->keeper.taker().Holds();
}

bool SimulatedWorker::IsWaiting() {
  return !ledger_.OpenStep().has_value() || UnansweredGather().has_value();
}

void SimulatedWorker::OnTurnRule(const TurnRule& rule) {
  if (turns_ != nullptr) turns_->keeper.SetRule(rule);
}

void SimulatedWorker::WithTurn(std::function<void()> task) {
  if (turns_ == nullptr) return task();
  turns_->keeper.Update(ledger_.OpenStep(), /*waits=*/false,
                        world_->events.now());
  turns_->client->Await(std::move(task));
}

void SimulatedWorker::UpdateTurn(bool waits) {
  if (turns_ == nullptr) return;
  if (!turns_->keeper.Update(ledger_.OpenStep(), waits, world_->events.now())) {
    turns_->client->StopWaiting();
  }
}

// ---- The machine's life.

std::unique_ptr<Machine> SimulatedWorker::MakeMachine(const EpochStart& start,
                                                      Outbox& out) {
  rank_ = start.self.rank;
  auto machine =
      std::make_unique<WorkerMachine>(start.job, rank_, Allocate(*start.job));
  machine_ = machine.get();
  step_ = start.job->workers[start.job->PositionOf(rank_)].first_step - 1;
  process_->idle = false;
  has_left_ = false;
  gathered_step_ = kInitialRound;
  process_->life = static_cast<int>(ledger_.Restart(start.job->epoch));
  UpdateTurn(/*waits=*/true);
  caller_.OnMachine(machine_, process_->life, out);
  // The job may have gone back to a checkpoint. This caller notices at once.
  ledger_.Acknowledge();
  caller_.OnValuesFree(out);
  return machine;
}

std::vector<LayerMemory> SimulatedWorker::Allocate(const Job& job) {
  layers_.clear();
  const bool optimizes = job.options.optimizer_place == OptimizerPlace::kWorker;
  const int state_arrays =
      optimizes ? OptimizerStateCount(job.options.optimizer.rule) : 0;
  std::vector<LayerMemory> memory;
  for (size_t i = 0; i < world_->workload.layers.size(); ++i) {
    const LayerSpec& spec = world_->workload.layers[i];
    const int index = static_cast<int>(i);
    const bool has_factors = HasFactors(index);
    Layer layer;
    layer.parameters = AllocateFloats(spec.parameters);
    layer.state = AllocateFloats(state_arrays * spec.parameters);
    layer.gradient = AllocateFloats(spec.parameters);
    layer.mean = layer.gradient;
    layer.output_gradient =
        AllocateFloats(has_factors ? spec.rows * spec.m : 0);
    layer.input = AllocateFloats(has_factors ? spec.rows * spec.n : 0);
    world_->workload.initialize(rank_, index, Floats(layer.parameters));
    // Workers with even ranks get means in the gradient's memory. So the test
    // tries both places of a mean.
    memory.push_back({layer.parameters, layer.state,
                      /*means_in_place=*/rank_ % 2 == 0});
    layers_.push_back(std::move(layer));
  }
  return memory;
}

bool SimulatedWorker::HasFactors(int layer) const {
  return world_->workload.factors != nullptr &&
         world_->workload.layers[layer].has_factors;
}

// ---- A step.

void SimulatedWorker::TryStep() {
  if (LeavesBefore(step_) && !has_left_ && step_ > kInitialRound) Leave();
  if (has_left_ || step_ >= world_->steps_wanted) return;
  // With waits_in_forward, the step may have begun already.
  const bool has_begun =
      ledger_.begun().has_value() && ledger_.begun()->step == step_;
  if (!has_begun && !Begin(step_)) return;
  // Each worker draws a threshold for each step. It may change only the time of
  // frames.
  if (world_->options.job.tune_fusion) {
    machine_->SetFusion(
        static_cast<int64_t>(world_->random.Below(int64_t{1} << 18)));
  }
  process_->idle = false;
  WithTurn([this] {
    if (MustGather()) return StartGathering();
    Compute([this, last = layer_count() - 1] { Backward(last); });
  });
}

bool SimulatedWorker::MustGather() const {
  return world_->options.gathers &&
         world_->options.job.rounds.quorum == Quorum::kAll && step_ % 3 == 0 &&
         gathered_step_ != step_;
}

void SimulatedWorker::StartGathering() {
  UpdateTurn(/*waits=*/true);
  gathered_step_ = step_;
  const auto gather = ledger_.gathering().Begin(
      ledger_.pushed_step(),
      absl::StrCat(rank_, " in step ", step_, " of epoch ",
                   process_->start()->job->epoch));
  Outbox out;
  out.Add(SendMessage{*gather});
  world_->execute(*process_, out);
}

void SimulatedWorker::OnGathered(const Gathered& answer) {
  const std::optional<Gather> own = UnansweredGather();
  ledger_.gathering().OnGathered(answer);
  if (!own.has_value() || UnansweredGather().has_value()) return;
  world_->laws.Tell(
      WorkerGathered{rank_, process_->start()->job->epoch, own->value, answer});
  ledger_.gathering().Take().IgnoreError();
  WithTurn([this] {
    Compute([this, last = layer_count() - 1] { Backward(last); });
  });
}

void SimulatedWorker::Leave() {
  has_left_ = true;
  world_->last_step = std::max(world_->last_step, step_ - 1);
  Outbox out;
  machine_->OnLeave(out);
  process_->member->OnLeave(step_ - 1, leaves_early_, out);
  world_->execute(*process_, out);
}

bool SimulatedWorker::Begin(int64_t step) {
  const auto call = ledger_.StepToBegin();
  NEREUS_CHECK(call.ok() && call->step == step)
      << "worker " << rank_ << " begins step " << step << ", its ledger says "
      << (call.ok() ? absl::StrCat(call->step) : call.status().ToString());
  Outbox out;
  std::optional<StepInfo> begun = caller_.OnBegin(*call, rank_, out);
  if (begun.has_value()) {
    if (world_->options.samples_each_step) machine_->OnHeartbeat();
    if (world_->options.job.scale_loss)
      begun->loss_scale = ledger_.loss_scale();
    ledger_.Begin(*begun);
  }
  world_->execute(*process_, out);
  return begun.has_value();
}

void SimulatedWorker::Backward(int layer) {
  // Another client may have passed this one, which stood still.
  if (turns_ != nullptr && !HasTurn()) {
    return WithTurn([this, layer] { Backward(layer); });
  }
  Outbox out;
  if (layer == 0) ReportRows(out);
  Push(layer, out);
  UpdateTurn(/*waits=*/false);
  world_->execute(*process_, out);
  if (layer > 0) {
    Compute([this, layer] { Backward(layer - 1); });
    return;
  }
  if (!world_->options.waits_in_forward) return;
  // If the machine does not let the next step begin now, TryStep asks again
  // after this step.
  const int64_t next = step_ + 1;
  if (next < world_->steps_wanted && !LeavesBefore(next)) Begin(next);
  Forward(0);
}

// Before the last push of the step: what this push completes may be the switch
// round.
void SimulatedWorker::ReportRows(Outbox& out) {
  if (world_->workload.reports == nullptr) return;
  process_->member->OnFactorRows({world_->workload.reports(rank_, step_)}, out);
}

void SimulatedWorker::Forward(int layer) {
  Outbox out;
  machine_->OnHurry(layer, out);
  world_->execute(*process_, out);
  if (layer + 1 == layer_count()) return;
  Compute([this, layer] { Forward(layer + 1); });
}

void SimulatedWorker::Compute(std::function<void()> task) {
  const SimulatedClusterOptions& options = world_->options;
  const absl::Duration time =
      slowness_ *
      (options.layer_time_min +
       world_->Draw(options.layer_time_max - options.layer_time_min));
  process_->RunInLifeAfter(world_->events, time, std::move(task));
}

void SimulatedWorker::Push(int index, Outbox& out) {
  const Workload& workload = world_->workload;
  Layer& layer = layers_[index];
  const auto parameters = Floats(layer.parameters);
  // A real client reports a layer as done when no frame refers to the caller's
  // memory any more. This caller allocates other memory instead of waiting.
  layer.mean = Buffer();
  for (Buffer* lent : {&layer.gradient, &layer.output_gradient, &layer.input}) {
    if (lent->bytes() > 0 && !lent->unique()) {
      *lent = AllocateFloats(lent->float_count());
    }
  }
  layer.mean = layer.gradient;
  const auto pushed = ledger_.BeginPush(index, step_);
  NEREUS_CHECK(pushed.ok()) << pushed.status();
  bool has_factors = HasFactors(index);
  if (has_factors) {
    workload.factors(rank_, step_, index, parameters,
                     Floats(layer.output_gradient), Floats(layer.input));
    if (workload.PushesProduct(rank_, step_, index) ||
        process_->start()->job->layers[index].rows <= 0) {
      const LayerSpec& spec = workload.layers[index];
      FactorGradient(spec.rows, spec.m, spec.n,
                     spec.parameters > spec.m * spec.n, /*scale=*/1.0f,
                     layer.output_gradient.floats(), layer.input.floats(),
                     layer.gradient.floats());
      has_factors = false;
    }
  } else {
    workload.gradient(rank_, step_, index, parameters, Floats(layer.gradient));
  }
  const Buffer& scaled = has_factors ? layer.input : layer.gradient;
  if (pushed->loss_scale != 1.0f) {
    for (float& value : Floats(scaled)) value *= pushed->loss_scale;
  }
  // A poisoned step has its value in one layer, which changes from step to
  // step.
  if (workload.poisons != nullptr && step_ % layer_count() == index) {
    const float poison = workload.poisons(rank_, step_, process_->life);
    if (poison != 0) Floats(scaled)[0] = poison;
  }
  // A client looks at gradients before it votes.
  const bool is_fit =
      !process_->start()->job->votes() ||
      FindTooLarge(scaled.data(), static_cast<size_t>(scaled.float_count())) <
          0;
  if (!is_fit) ledger_.NoteUnfit(step_);
  WorkerMachine* const machine = caller_.machine(pushed->life);
  world_->laws.EndRun(
      has_factors
          ? machine->OnPushFactors(index, step_,
                                   FactorBuffers{layer.output_gradient,
                                                 layer.input, layer.gradient},
                                   out, is_fit, pushed->loss_scale)
          : machine->OnPush(index, step_, layer.gradient, out, is_fit,
                            pushed->loss_scale));
}

// ---- Results of the machine.

void SimulatedWorker::OnLayerDone(const LayerDone& done) {
  const StepLedger::Done kind =
      ledger_.Finish(done.layer, done.round, done.skipped);
  Layer& layer = layers_[done.layer];
  if (kind == StepLedger::Done::kAgain) {
    const Job& job = *process_->start()->job;
    world_->laws.Tell(
        FetchedAgain{{process_->id, rank_, done.layer, done.round, &job},
                     ValuesOf(layer.parameters)});
    if (process_->idle) TryStep();
    return;
  }
  NEREUS_CHECK(done.round == step_)
      << "layer " << done.layer << " is done with round " << done.round
      << " in step " << step_;
  if (done.mean.bytes() > 0) layer.mean = done.mean;
  Tell(done, kind == StepLedger::Done::kFirst);
  if (ledger_.HasFirstValues() && ledger_.round() >= step_) OnStepDone();
}

void SimulatedWorker::Tell(const LayerDone& done, bool is_first) {
  const Job& job = *process_->start()->job;
  const Layer& layer = layers_[done.layer];
  const bool has_mean =
      job.options.optimizer_place == OptimizerPlace::kWorker &&
      done.round >= job.workers[job.PositionOf(rank_)].first_step;
  RoundDone event;
  event.place = {process_->id, rank_, done.layer, done.round, &job};
  event.is_first = is_first;
  event.skipped = done.skipped;
  event.parameters = ValuesOf(layer.parameters);
  if (has_mean) event.mean = ValuesOf(layer.mean);
  if (!has_mean || !done.skipped) {
    world_->Note(has_mean ? event.mean->checksum : event.parameters.checksum,
                 static_cast<uint64_t>(done.round));
  }
  world_->laws.Tell(event);
}

void SimulatedWorker::OnStepDone() {
  world_->laws.Tell(StepDone{process_->id});
  const Job& job = *process_->start()->job;
  const bool optimizes = job.options.optimizer_place == OptimizerPlace::kWorker;
  const int position = job.PositionOf(rank_);
  if (optimizes && !ledger_.Skipped(step_) && position >= 0 &&
      step_ >= job.workers[position].first_step) {
    UpdateParameters();
  }
  if (job.options.measure && world_->random.Chance(0.5)) {
    Outbox out;
    out.Add(SendMessage{DrawMeasured(*world_)});
    world_->execute(*process_, out);
  }
  ++step_;
  process_->idle = true;
  TryStep();
}

void SimulatedWorker::UpdateParameters() {
  const OptimizerOptions& optimizer = world_->options.job.optimizer;
  const Job& job = *process_->start()->job;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    float* const parameters = layer.parameters.floats();
    ApplyOptimizer(optimizer, step_, layer.parameters.float_count(), 1.0f,
                   layer.mean.floats(), parameters, layer.state.floats(),
                   parameters);
    world_->laws.Tell(ParametersUpdated{
        {process_->id, rank_, static_cast<int>(i), step_, &job},
        ValuesOf(layer.parameters)});
  }
}

// ---- Requests and state for the cluster.

void SimulatedWorker::LeaveSoon(bool early) {
  leaves_before_ = early ? 0 : step_;
  leaves_early_ = early;
  if (process_->alive && process_->idle && machine_ != nullptr) TryStep();
}

Heartbeat SimulatedWorker::MakeHeartbeat() {
  if (machine_ != nullptr && !world_->options.samples_each_step) {
    machine_->OnHeartbeat();
  }
  Heartbeat heartbeat;
  heartbeat.begun_step = std::max(ledger_.next_step() - 1, kInitialRound);
  heartbeat.pushed_step = ledger_.pushed_step();
  heartbeat.went_back_in = ledger_.gathering().went_back_in();
  heartbeat.round = ledger_.round();
  return heartbeat;
}

bool SimulatedWorker::HasDone(int64_t steps) const {
  if (machine_ == nullptr) return false;
  const bool is_fetching = !ledger_.HasFirstValues();
  return step_ >= steps || (is_fetching && step_ == steps - 1 && steps > 0);
}

std::vector<std::string> SimulatedWorker::DescribeWaits() const {
  std::vector<std::string> texts;
  for (int layer = 0; layer < layer_count(); ++layer) {
    const Syncer& syncer = machine_->syncer(layer);
    if (process_->idle || syncer.done_round() >= step_) continue;
    texts.push_back(absl::StrCat("worker ", rank_, " in step ", step_,
                                 " waits in layer ", ledger_.name(layer),
                                 " for ", syncer.Missing()));
  }
  return texts;
}

absl::Span<const float> SimulatedWorker::parameters(int layer) const {
  return Floats(layers_[layer].parameters);
}

absl::Span<float> SimulatedWorker::mutable_parameters(int layer) {
  return Floats(layers_[layer].parameters);
}

absl::Span<const float> SimulatedWorker::mean_gradient(int layer) const {
  return Floats(layers_[layer].mean);
}

}  // namespace nereus
