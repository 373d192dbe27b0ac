#include "server/admin/simulate/simulated_iteration.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/plan/fusion_tuner.h"
#include "common/plan/placement.h"
#include "common/plan/traffic.h"
#include "server/shard/shard.h"

namespace nereus {
namespace {

// WhatIf::iterations of 0.
constexpr int kIterationsFirst = 8;
constexpr int kIterationsMax = 128;
constexpr double kIterationsDiffer = 0.005;

constexpr int64_t kEventsPerProgress = int64_t{1} << 14;
constexpr int64_t kWindowBytesMin = int64_t{1} << 20;

absl::StatusOr<JobPtr> MakeSimulatedJob(const WhatIf& what_if,
                                        const Plan& plan) {
  Job job;
  job.id = 1;
  job.epoch = 1;
  job.workers = FirstWorkers(static_cast<int>(what_if.plan.cluster.workers));
  job.layers = what_if.layers;
  job.routes = plan.routes;
  job.options = what_if.job;
  return MakeJob(std::move(job),
                 static_cast<int>(what_if.plan.cluster.servers));
}

NetworkOptions MakeNetworkOptions(const WhatIf& what_if) {
  NetworkOptions options;
  options.message_time = what_if.message_time;
  options.delay_min = what_if.latency;
  options.delay_max = what_if.latency + what_if.jitter;
  // As TCP's windows grow: enough for the way there and back.
  const double way =
      absl::ToDoubleSeconds(options.delay_max) * what_if.node_rate;
  constexpr double kWindowBytesMax = 1e15;
  options.window_bytes = kWindowBytesMin + static_cast<int64_t>(std::min(
                                               2 * way, kWindowBytesMax));
  return options;
}

double CopyRate(const WhatIf& what_if) {
  if (what_if.host_copy == absl::ZeroDuration()) return kUnlimitedRate;
  double bytes = 0;
  for (const LayerSpec& layer : what_if.layers) {
    bytes += 4.0 * static_cast<double>(layer.parameters);
  }
  return 2 * bytes / absl::ToDoubleSeconds(what_if.host_copy);
}

// Between nodes. A frame is counted where it leaves and where it arrives, so a
// byte more of header is two more bytes.
int64_t FramesPerStep(const Job& job) {
  const auto bytes = [&](int64_t header_bytes) {
    const std::vector<int64_t> nodes = PredictNodeBytes(
        job.layers, job.routes, job.placement, job.worker_count(), header_bytes,
        kFrameElementsMax, job.decoupled());
    return std::accumulate(nodes.begin(), nodes.end(), int64_t{0});
  };
  return (bytes(1) - bytes(0)) / 2;
}

// The machines of a cluster, and the network between them.
class IterationSimulation : public SimulatedTrainer::Driver {
 public:
  // Measures so many iterations, after the first `warm_up` of them.
  IterationSimulation(const WhatIf& what_if, JobPtr job, int warm_up,
                      int iterations);

  // Until every worker has done all steps.
  void Run(const WhatIfProgress& progress);

  IterationResult Result(const WhatIf& what_if) const;

 private:
  struct Posted {
    PeerId to;
    Frame frame;
  };

  void Send(PeerId from, PeerId to, const Frame& frame) override;
  void Broadcast(PeerId from, const Frame& frame) override;
  void OnBackwardDone(PeerId worker, int64_t step) override;
  void OnStepDone(PeerId worker, int64_t step) override;

  int workers() const { return job_->worker_count(); }
  ProcessId ProcessOf(PeerId peer) const {
    return peer.role == Role::kWorker ? peer.rank : workers() + peer.rank;
  }
  PeerId PeerOf(ProcessId process) const {
    return process < workers() ? PeerId::Worker(process)
                               : PeerId::Shard(process - workers());
  }
  void FetchInitialValues();
  void Deliver(PeerId to, const Frame& frame);
  void DeliverToShard(int index, const Frame& frame);
  double Done() const;

  const JobPtr job_;
  const int warm_up_;
  const int iterations_;
  const int nodes_;
  const TrainerProgram program_;
  EventQueue events_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<SimulatedTrainer>> trainers_;
  Outbox outbox_;

  bool started_ = false;
  std::deque<Posted> posted_;  // Before the start, in order.

  int64_t frames_expected_ = 0;
  std::vector<int> workers_left_;     // By step, not yet done with it.
  std::vector<absl::Time> ended_at_;  // By step.
  absl::Duration compute_;            // Of the last step.
  std::vector<int64_t> bytes_;        // By node and layer, of the last step.
};

IterationSimulation::IterationSimulation(const WhatIf& what_if, JobPtr job,
                                         int warm_up, int iterations)
    : job_(std::move(job)),
      warm_up_(warm_up),
      iterations_(iterations),
      nodes_(std::max(job_->worker_count(), job_->shards())),
      program_{job_, what_if.times, warm_up + iterations, CopyRate(what_if)},
      network_(MakeNetworkOptions(what_if), what_if.seed, &events_,
               [this](ProcessId, ProcessId to, const Frame& frame) {
                 Deliver(PeerOf(to), frame);
                 return true;
               }),
      bytes_(nodes_ * job_->layers.size(), 0) {
  for (NodeId node = 0; node < nodes_; ++node) {
    network_.SetRate(node, {what_if.node_rate, what_if.node_rate});
  }
  for (int index = 0; index < job_->shards(); ++index) {
    network_.Place(ProcessOf(PeerId::Shard(index)), index);
    shards_.push_back(std::make_unique<Shard>(job_, index));
  }
  for (int rank = 0; rank < workers(); ++rank) {
    const auto delay = what_if.delays.find(rank);
    trainers_.push_back(std::make_unique<SimulatedTrainer>(
        &program_, rank,
        delay == what_if.delays.end() ? absl::ZeroDuration() : delay->second,
        what_if.delay_in_turn, &events_, this));
  }
  FetchInitialValues();
}

// Worker by worker, so that little is under way; takes no time.
void IterationSimulation::FetchInitialValues() {
  for (int rank = 0; rank < workers(); ++rank) {
    WorkerMachine& machine = trainers_[rank]->machine();
    Outbox out;
    machine.Start(out);
    for (const Action& action : out.actions()) {
      const auto* send = std::get_if<SendFrame>(&action);
      NEREUS_CHECK(send != nullptr) << "worker " << rank;
      posted_.push_back({send->to, send->frame});
    }
    while (!posted_.empty()) {
      const Posted posted = std::move(posted_.front());
      posted_.pop_front();
      Deliver(posted.to, posted.frame);
    }
    NEREUS_CHECK(!machine.Report().fetching) << "worker " << rank;
  }
  started_ = true;
}

void IterationSimulation::Send(PeerId from, PeerId to, const Frame& frame) {
  if (!started_) {
    posted_.push_back({to, frame});
    return;
  }
  if (from.rank != to.rank && frame.header.round == program_.steps - 1) {
    const int64_t bytes = kFrameHeaderBytes + frame.header.payload_bytes;
    const size_t layers = job_->layers.size();
    bytes_[from.rank * layers + frame.header.layer] += bytes;
    bytes_[to.rank * layers + frame.header.layer] += bytes;
  }
  Frame ranked = frame;
  ranked.priority = job_->SendPriority(frame.header);
  ranked.fused = job_->fuses();
  network_.Send(ProcessOf(from), ProcessOf(to), ranked);
}

void IterationSimulation::Broadcast(PeerId from, const Frame& frame) {
  for (int rank = 0; rank < workers(); ++rank) {
    const PeerId to = PeerId::Worker(rank);
    if (to != from) Send(from, to, frame);
  }
}

void IterationSimulation::Deliver(PeerId to, const Frame& frame) {
  if (to.role == Role::kWorker) {
    trainers_[to.rank]->Deliver(frame);
  } else {
    DeliverToShard(to.rank, frame);
  }
}

void IterationSimulation::DeliverToShard(int index, const Frame& frame) {
  Shard& shard = *shards_[index];
  const auto landing = shard.OnHeader(frame.header.sender, frame.header);
  NEREUS_CHECK(landing.ok()) << landing.status();
  NEREUS_CHECK(landing->kind == Landing::Kind::kScratch)
      << DescribeFrame(frame.header);
  shard.OnFrame(frame.header.sender, frame, outbox_);
  const PeerId self = PeerId::Shard(index);
  for (const Action& action : outbox_.actions()) {
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      Send(self, send->to, send->frame);
    } else if (const auto* broadcast = std::get_if<BroadcastFrame>(&action)) {
      Broadcast(self, broadcast->frame);
    }
  }
  outbox_.Clear();
}

void IterationSimulation::OnBackwardDone(PeerId, int64_t step) {
  // The last one's.
  if (job_->decoupled()) ended_at_[step] = events_.now();
}

void IterationSimulation::OnStepDone(PeerId worker, int64_t step) {
  if (--workers_left_[step] == 0 && !job_->decoupled()) {
    ended_at_[step] = events_.now();
  }
  if (step < program_.steps - 1) return;
  compute_ = std::max(compute_, trainers_[worker.rank]->compute_time(step));
}

double IterationSimulation::Done() const {
  if (frames_expected_ == 0) return 1.0;
  return std::min(1.0, static_cast<double>(network_.frames_delivered()) /
                           static_cast<double>(frames_expected_));
}

void IterationSimulation::Run(const WhatIfProgress& progress) {
  workers_left_.assign(program_.steps, workers());
  ended_at_.assign(program_.steps, events_.now());
  frames_expected_ = program_.steps * FramesPerStep(*job_);
  for (auto& trainer : trainers_) trainer->Begin();
  while (workers_left_.back() > 0) {
    NEREUS_CHECK(events_.RunNext()) << "nothing moves any more";
    if (progress != nullptr && events_.events_run() % kEventsPerProgress == 0) {
      progress(Done());
    }
  }
}

IterationResult IterationSimulation::Result(const WhatIf& what_if) const {
  IterationResult result;
  const absl::Time warm = ended_at_[warm_up_ - 1];
  result.iteration = (ended_at_.back() - warm) / iterations_;
  result.iterations = iterations_;
  result.compute = compute_;
  result.single_node = TotalTime(what_if.times);
  result.network_exposed = result.iteration - result.compute;
  if (result.iteration > absl::ZeroDuration()) {
    result.speedup = static_cast<double>(workers()) *
                     absl::FDivDuration(result.single_node, result.iteration);
  }
  const size_t layers = job_->layers.size();
  for (int node = 0; node < nodes_; ++node) {
    const auto first = bytes_.begin() + node * layers;
    result.node_bytes.push_back(
        std::accumulate(first, first + layers, int64_t{0}));
  }
  result.busiest_node = static_cast<int>(
      std::max_element(result.node_bytes.begin(), result.node_bytes.end()) -
      result.node_bytes.begin());
  const auto first = bytes_.begin() + result.busiest_node * layers;
  result.layer_bytes.assign(first, first + layers);
  result.events = events_.events_run();
  return result;
}

absl::StatusOr<IterationResult> SimulateWith(const WhatIf& what_if,
                                             const Plan& plan,
                                             const WhatIfProgress& progress) {
  NEREUS_ASSIGN_OR_RETURN(const JobPtr job, MakeSimulatedJob(what_if, plan));
  const auto simulate = [&](int warm_up, int iterations) {
    IterationSimulation simulation(what_if, job, warm_up, iterations);
    simulation.Run(progress);
    return simulation.Result(what_if);
  };
  IterationResult result =
      simulate(/*warm_up=*/1, std::max(what_if.iterations, 1));
  if (what_if.iterations == 0 && what_if.varies()) {
    absl::Duration before;
    int iterations = kIterationsFirst;
    do {
      before = result.iteration;
      result = simulate(/*warm_up=*/iterations, iterations);
      iterations *= 2;
    } while (absl::AbsDuration(result.iteration - before) >
                 kIterationsDiffer * before &&
             iterations <= kIterationsMax);
  }
  result.plan = plan;
  result.fusion_bytes = what_if.job.fusion_bytes;
  return result;
}

}  // namespace

absl::Status WhatIf::Validate() const {
  NEREUS_RETURN_IF_ERROR(ValidateLayers(layers));
  NEREUS_RETURN_IF_ERROR(plan.cluster.Validate());
  NEREUS_RETURN_IF_ERROR(job.Validate());
  for (const auto& [name, count] :
       {std::pair{"workers", plan.cluster.workers},
        std::pair{"servers", plan.cluster.servers}}) {
    if (count > kSimulatedNodesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", count, ", can be simulated up to ",
                       kSimulatedNodesMax));
    }
  }
  if (times.size() != layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "times has ", times.size(), " layers, the model ", layers.size()));
  }
  if (!(node_rate > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("node_rate is ", node_rate, ", must be above 0"));
  }
  for (const auto& [name, value] :
       {std::pair{"latency", latency}, std::pair{"jitter", jitter},
        std::pair{"host_copy", host_copy},
        std::pair{"delay_in_turn", delay_in_turn},
        std::pair{"message_time", message_time}}) {
    if (value < absl::ZeroDuration() || value > kComputeTimeMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is ", absl::FormatDuration(value), ", must be from 0 to ",
          absl::FormatDuration(kComputeTimeMax)));
    }
  }
  for (const auto& [worker, delay] : delays) {
    if (worker < 0 || worker >= plan.cluster.workers) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker ", worker, " is delayed, of ",
                       plan.cluster.workers, " workers"));
    }
    if (delay < absl::ZeroDuration() || delay > kComputeTimeMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the delay of worker ", worker, " is ", absl::FormatDuration(delay),
          ", must be from 0 to ", absl::FormatDuration(kComputeTimeMax)));
    }
  }
  if (iterations < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("iterations is ", iterations, ", must not be below 0"));
  }
  return absl::OkStatus();
}

bool WhatIf::varies() const {
  return !delays.empty() || delay_in_turn > absl::ZeroDuration() ||
         jitter > absl::ZeroDuration();
}

absl::StatusOr<PlanOptions> PlanOptionsOf(const WhatIf& what_if) {
  NEREUS_RETURN_IF_ERROR(what_if.job.Validate());
  PlanOptions options = what_if.plan;
  options.rules = RulesFor(what_if.job, options.rules);
  options.time =
      TimeModel{what_if.times,
                {what_if.node_rate, what_if.latency, what_if.message_time},
                what_if.job.overlap == Overlap::kDecoupled,
                1 - what_if.job.sparsity};
  return options;
}

absl::StatusOr<IterationResult> SimulateIterations(
    const WhatIf& what_if, const WhatIfProgress& progress) {
  NEREUS_RETURN_IF_ERROR(what_if.Validate());
  NEREUS_ASSIGN_OR_RETURN(const PlanOptions options, PlanOptionsOf(what_if));
  NEREUS_ASSIGN_OR_RETURN(const Plan plan, MakePlan(what_if.layers, options));
  if (!what_if.job.tune_fusion) return SimulateWith(what_if, plan, progress);
  WhatIf trial = what_if;
  FusionTuner tuner(plan.fusion_bytes);
  while (!tuner.done()) {
    trial.job.fusion_bytes = tuner.next();
    NEREUS_ASSIGN_OR_RETURN(const IterationResult result,
                            SimulateWith(trial, plan, progress));
    const double seconds = absl::ToDoubleSeconds(result.iteration);
    if (seconds <= 0) break;  // Nothing takes any time.
    tuner.Observe(seconds);
  }
  trial.job.fusion_bytes = tuner.best();
  return SimulateWith(trial, plan, progress);
}

}  // namespace nereus
