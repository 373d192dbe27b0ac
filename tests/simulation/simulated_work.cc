// What the workers of a simulated cluster do.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/compute/vectors.h"
#include "tests/simulation/simulated_process.h"

namespace nereus {

std::unique_ptr<Machine> SimulatedCluster::MakeWorker(Process& process,
                                                      const EpochStart& start,
                                                      Outbox& out) {
  ++process.life;
  process.rank = start.self.rank;
  for (auto* buffers :
       {&process.parameters, &process.states, &process.gradients,
        &process.means, &process.output_gradients, &process.inputs}) {
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
    process.means.push_back(process.gradients.back());
    const bool factors = GaveFactors(static_cast<int>(i));
    process.output_gradients.push_back(
        AllocateFloats(factors ? layer.rows * layer.m : 0));
    process.inputs.push_back(
        AllocateFloats(factors ? layer.rows * layer.n : 0));
    // Each process comes with parameters of its own; all but the first one's
    // are replaced.
    workload_.initialize(process.rank, static_cast<int>(i),
                         Floats(process.parameters.back()));
    memory.push_back({process.parameters.back(), process.states.back(),
                      /*means_in_place=*/process.rank % 2 == 0});
  }
  auto worker = std::make_unique<WorkerMachine>(start.job, process.rank,
                                                std::move(memory));
  process.worker = worker.get();
  process.step =
      start.job->workers[start.job->PositionOf(process.rank)].first_step - 1;
  process.layers_left = static_cast<int>(workload_.layers.size());
  process.idle = false;
  process.fetching = true;
  process.left = false;
  worker->Start(out);
  return worker;
}

// What a trainer does.

bool SimulatedCluster::GaveFactors(int layer) const {
  return workload_.factors != nullptr && workload_.layers[layer].has_factors;
}

void SimulatedCluster::TryStep(Process& process) {
  if (process.leave_soon && !process.left && process.step > kInitialRound) {
    process.left = true;
    last_step_ = std::max(last_step_, process.step - 1);
    Outbox out;
    process.worker->OnLeave(out);
    process.member->OnLeave(process.step - 1, out);
    Execute(process, out);
  }
  if (process.left || process.step >= steps_wanted_) return;
  Outbox out;
  const bool begins = process.worker->BeginStep(process.step, out);
  Execute(process, out);
  if (!begins) return;
  // Each worker another one, at any step: nothing but the time depends on it.
  if (options_.job.tune_fusion) {
    process.worker->SetFusion(
        static_cast<int64_t>(random_.Below(int64_t{1} << 18)));
  }
  process.idle = false;
  process.layers_left = static_cast<int>(workload_.layers.size());
  const int last = process.layers_left - 1;
  OnLife(process, process.slowness * Draw(options_.layer_time_max),
         [this, &process, last] { Backward(process, last); });
}

void SimulatedCluster::Backward(Process& process, int layer) {
  Outbox out;
  Push(process, layer, out);
  Execute(process, out);
  if (layer == 0) {
    if (options_.job.overlap == Overlap::kDecoupled) BeginForward(process);
    return;
  }
  OnLife(process, process.slowness * Draw(options_.layer_time_max),
         [this, &process, layer] { Backward(process, layer - 1); });
}

void SimulatedCluster::BeginForward(Process& process) {
  const int64_t next = process.step + 1;
  const bool goes_on = next < steps_wanted_ && !process.leave_soon;
  // If it may not, it is tried again when the layers are done.
  if (goes_on) {
    Outbox out;
    process.worker->BeginStep(next, out);
    Execute(process, out);
  }
  Forward(process, 0);
}

void SimulatedCluster::Forward(Process& process, int layer) {
  Outbox out;
  process.worker->OnWait(layer, out);
  Execute(process, out);
  if (layer + 1 == static_cast<int>(workload_.layers.size())) return;
  OnLife(process, process.slowness * Draw(options_.layer_time_max),
         [this, &process, layer] { Forward(process, layer + 1); });
}

void SimulatedCluster::Push(Process& process, int layer, Outbox& out) {
  const auto parameters = Floats(process.parameters[layer]);
  process.means[layer] = process.gradients[layer];
  const int layers = static_cast<int>(workload_.layers.size());
  // In one layer, another one in each step.
  const bool fit = workload_.poisons == nullptr ||
                   process.step % layers != layer ||
                   !workload_.poisons(process.rank, process.step, process.life);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  absl::Status status;
  if (GaveFactors(layer)) {
    workload_.factors(process.rank, process.step, layer, parameters,
                      Floats(process.output_gradients[layer]),
                      Floats(process.inputs[layer]));
    if (!fit) Floats(process.inputs[layer])[0] = kNaN;
    status = process.worker->OnPushFactors(
        layer, process.step,
        FactorBuffers{process.output_gradients[layer], process.inputs[layer],
                      process.gradients[layer]},
        out, fit);
  } else {
    workload_.gradient(process.rank, process.step, layer, parameters,
                       Floats(process.gradients[layer]));
    if (!fit) Floats(process.gradients[layer])[0] = kNaN;
    status = process.worker->OnPush(layer, process.step,
                                    process.gradients[layer], out, fit);
  }
  failure_.Update(status);
}

void SimulatedCluster::OnLayerDone(Process& process, const LayerDone& done) {
  if (done.round < process.step) return OnFetchedAgain(process, done);
  NEREUS_CHECK(done.round == process.step)
      << "layer " << done.layer << " is done with round " << done.round
      << " in step " << process.step;
  process.skipped = done.skipped;
  if (done.mean.bytes() > 0) process.means[done.layer] = done.mean;
  CheckSkipped(process, done);
  CheckOutcome(process, done);
  if (--process.layers_left == 0) OnStepDone(process);
}

void SimulatedCluster::OnFetchedAgain(Process& process, const LayerDone& done) {
  const uint32_t sum = Checksum(process.parameters[done.layer]);
  const bool same = std::exchange(process.sums[done.layer], sum) == sum ||
                    // Workers get them rounded.
                    options_.rules.choose_wire ||
                    options_.rules.wire != WireType::kFloat32;
  if (!same) {
    failure_.Update(absl::InternalError(
        absl::StrCat("layer ", done.layer, ", round ", done.round, ", worker ",
                     process.rank, ": another plan begins with other values")));
  }
  if (process.idle) TryStep(process);
}

void SimulatedCluster::CheckSkipped(Process& process, const LayerDone& done) {
  const Buffer& parameters = process.parameters[done.layer];
  const uint32_t sum = Checksum(parameters);
  process.sums.resize(workload_.layers.size());
  const uint32_t before = std::exchange(process.sums[done.layer], sum);
  const std::string where = absl::StrCat("layer ", done.layer, ", round ",
                                         done.round, ", worker ", process.rank);
  if (FindNotFinite(parameters.floats(), parameters.float_count()) >= 0) {
    failure_.Update(absl::InternalError(
        absl::StrCat(where, ": a NaN has got into the parameters")));
  }
  if (process.fetching || job().PositionOf(process.rank) < 0) return;
  const bool updated_here =
      options_.job.optimizer_place == OptimizerPlace::kWorker;
  if (done.skipped && sum != before && !updated_here) {
    failure_.Update(absl::InternalError(
        absl::StrCat(where, ": a step that is skipped changes parameters")));
  }
  Heard& heard =
      skipped_.try_emplace(done.round, Heard{process.id, done.skipped})
          .first->second;
  // What one has heard who is gone, the others may not have.
  if (job().PositionOf(processes_[heard.by]->rank) < 0) {
    heard = {process.id, done.skipped};
  }
  if (heard.skipped == done.skipped) return;
  failure_.Update(absl::InternalError(absl::StrCat(where, ": others have ",
                                                   done.skipped ? "not " : "",
                                                   "skipped the step")));
}

void SimulatedCluster::CheckOutcome(const Process& process,
                                    const LayerDone& done) {
  const Job& job = *process.member->start()->job;
  const bool means =
      job.options.optimizer_place == OptimizerPlace::kWorker &&
      done.round > job.workers[job.PositionOf(process.rank)].first_step - 1;
  if (done.skipped && means) return;  // They may be anything.
  const uint32_t sum = Checksum(means ? process.means[done.layer]
                                      : process.parameters[done.layer]);
  // Means and parameters of one round are different things.
  const int key = done.layer * 2 + (means ? 1 : 0);
  Note(sum, static_cast<uint64_t>(done.round));
  // Whoever is answered later has later parameters.
  if (!job.partial()) Compare(process, key, done.round, sum);
  if (on_outcome_ != nullptr) {
    on_outcome_(process.rank, done.layer, done.round);
  }
}

void SimulatedCluster::Compare(const Process& process, int key, int64_t round,
                               uint32_t sum) {
  const Job& own = *process.member->start()->job;
  const int position = own.PositionOf(process.rank);
  if (position < 0) return;
  const int64_t first_step = own.workers[position].first_step;
  const Recorded now = {process.id, sum,
                        round >= first_step || round == own.base_round};
  if (key % 2 == 0 && now.exact) {
    had_sums_[{key / 2, round}].insert({own.routes[key / 2].wire, sum});
  }
  // One that counts as dead, but has not heard, may have got further than those
  // who went on without it.
  const auto counts = [&](const Process& p) {
    if (!p.alive || job().PositionOf(p.rank) < 0) return false;
    // Nor does what it came to before the job went back to a checkpoint.
    return p.member->start()->job->epoch >= restarted_in();
  };
  if (!counts(process)) return;
  const auto [found, first] = outcomes_.try_emplace({key, round}, now);
  Recorded& recorded = found->second;
  if (!counts(*processes_[recorded.by])) recorded = now;
  recorded.exact = recorded.exact || now.exact;
  if (recorded.sum == sum) {
    if (key % 2 == 0) CheckSaved(key / 2, round);
    return;
  }
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
  if (optimizes && !process.skipped && position >= 0 &&
      process.step >= job.workers[position].first_step) {
    UpdateParameters(process);
  }
  if (job.options.measure && random_.Chance(0.5)) {
    ToCoordinator(process.id, DrawMeasured());
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
                   1.0f, process.means[i].floats(), parameters,
                   process.states[i].floats(), parameters);
    Compare(process, static_cast<int>(i) * 2, process.step,
            Checksum(process.parameters[i]));
  }
}

}  // namespace nereus
