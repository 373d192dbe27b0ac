#include "server/admin/simulate/simulated_iteration.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "common/plan/fusion_tuner.h"
#include "common/plan/host_map.h"
#include "common/plan/placement.h"
#include "common/plan/traffic.h"
#include "server/shard/shard.h"

// Simulation of a job's iterations.
//
// SimulateIterations makes the plan and calls SimulateWith, once for each
// fusion threshold if fusion is tuned. SimulateWith runs an
// IterationSimulation, or several if iterations may differ. A simulation has
// trainers (simulated_trainer.h) and shards, which are production classes, and
// a SimulatedNetwork. IterationRecord collects the figures. Bytes and computing
// time are those of the last step. The time of an iteration is a mean.

namespace nereus {
namespace {

// Smallest and largest number of iterations if WhatIf::iterations is 0 and
// iterations may differ. The number is enough if doubling it changes the mean
// by the share kIterationsDiffer at most.
constexpr int kIterationsFirst = 8;
constexpr int kIterationsMax = 128;
constexpr double kIterationsDiffer = 0.005;

constexpr int64_t kEventsPerProgress = int64_t{1} << 14;
constexpr int64_t kWindowBytesMin = int64_t{1} << 20;

// Returns the job as a coordinator would announce it in its first epoch.
absl::StatusOr<JobPtr> MakeSimulatedJob(const WhatIf& what_if,
                                        const Plan& plan) {
  Job job;
  job.id = 1;
  job.epoch = 1;
  job.workers = FirstWorkers(static_cast<int>(what_if.plan.cluster.workers));
  const HostMap hosts = HostMap::Of(what_if.plan.cluster);
  for (EpochWorker& each : job.workers) {
    each.host = hosts.HostOfWorker(each.rank);
  }
  job.layers = what_if.layers;
  job.routes = plan.routes;
  job.options = what_if.job;
  return MakeJob(std::move(job),
                 static_cast<int>(what_if.plan.cluster.servers));
}

// Returns the options of the network between the nodes, without the rates of
// the nodes.
NetworkOptions MakeNetworkOptions(const WhatIf& what_if) {
  NetworkOptions options;
  options.computes_digest = false;
  options.message_time = what_if.message_time;
  options.delay_min = what_if.latency;
  options.delay_max = what_if.latency + what_if.jitter;
  // The window grows with the bytes of a round trip, as that of TCP does.
  const double way =
      absl::ToDoubleSeconds(options.delay_max) * what_if.node_rate;
  constexpr double kWindowBytesMax = 1e15;
  options.window_bytes = kWindowBytesMin + static_cast<int64_t>(std::min(
                                               2 * way, kWindowBytesMax));
  return options;
}

// Returns the bytes per second of copies between device and host.
// WhatIf::host_copy is the time to copy all parameters once in each direction.
double CopyRate(const WhatIf& what_if) {
  if (what_if.host_copy == absl::ZeroDuration()) return kUnlimitedRate;
  double bytes = 0;
  for (const LayerSpec& layer : what_if.layers) {
    bytes += 4.0 * static_cast<double>(layer.parameters);
  }
  return 2 * bytes / absl::ToDoubleSeconds(what_if.host_copy);
}

// Returns the number of frames in a step, without those between processes of
// one node. Finds it from the predicted bytes: they count each frame where it
// leaves and where it arrives, so a header that is one byte longer makes two
// bytes more for each frame.
int64_t FramesPerStep(const Job& job, const HostMap& hosts) {
  const auto bytes = [&](int64_t header_bytes) {
    const std::vector<int64_t> nodes =
        PredictLinkBytes(job.layers, job.routes, job.placement, hosts,
                         header_bytes, kFrameElementsMax);
    return absl::c_accumulate(nodes, int64_t{0});
  };
  return (bytes(1) - bytes(0)) / 2;
}

// Figures of a simulation, collected while it runs.
class IterationRecord {
 public:
  IterationRecord(const Job& job, int nodes, int warm_up, int iterations)
      : nodes_(nodes),
        layers_(job.layers.size()),
        warm_up_(warm_up),
        workers_left_(warm_up + iterations, job.worker_count()),
        ended_at_(warm_up + iterations),
        bytes_(nodes_ * layers_, 0) {}

  int nodes() const { return nodes_; }
  int64_t last_step() const { return std::ssize(ended_at_) - 1; }
  bool done() const { return workers_left_.back() == 0; }

  // Counts a frame of the last step between two nodes.
  void AddFrame(NodeId from, NodeId to, const FrameHeader& header) {
    const int64_t bytes = kFrameHeaderBytes + header.payload_bytes;
    bytes_[from * layers_ + header.layer] += bytes;
    bytes_[to * layers_ + header.layer] += bytes;
  }
  // Notes the end of a step. If called again for a step, the last call counts.
  void EndStep(int64_t step, absl::Time now) { ended_at_[step] = now; }
  // Counts a worker that has done a step. Returns true for the last worker.
  bool WorkerDone(int64_t step, absl::Duration compute) {
    if (step == last_step()) compute_ = std::max(compute_, compute);
    return --workers_left_[step] == 0;
  }

  // Returns the figures, without the plan, the fusion threshold and the number
  // of events.
  IterationResult Result(int workers, absl::Duration single_node) const;

 private:
  const int nodes_;
  const size_t layers_;
  const int warm_up_;                 // Iterations that are not measured.
  std::vector<int> workers_left_;     // Workers that are not done, by step.
  std::vector<absl::Time> ended_at_;  // End of each step.
  absl::Duration compute_;            // Longest compute time of the last step.
  std::vector<int64_t> bytes_;        // Last step, by node and layer.
};

IterationResult IterationRecord::Result(int workers,
                                        absl::Duration single_node) const {
  IterationResult result;
  result.iterations = static_cast<int>(ended_at_.size()) - warm_up_;
  result.iteration =
      (ended_at_.back() - ended_at_[warm_up_ - 1]) / result.iterations;
  result.compute = compute_;
  result.single_node = single_node;
  result.network_exposed = result.iteration - compute_;
  if (result.iteration > absl::ZeroDuration()) {
    result.speedup =
        workers * absl::FDivDuration(single_node, result.iteration);
  }
  for (int node = 0; node < nodes_; ++node) {
    const auto first = bytes_.begin() + node * layers_;
    result.node_bytes.push_back(
        std::accumulate(first, first + layers_, int64_t{0}));
  }
  result.busiest_node = static_cast<int>(
      absl::c_max_element(result.node_bytes) - result.node_bytes.begin());
  const auto first = bytes_.begin() + result.busiest_node * layers_;
  result.layer_bytes.assign(first, first + layers_);
  return result;
}

// Machines of a cluster, and the network between them.
class IterationSimulation : public SimulatedTrainer::Driver {
 public:
  // Measures `iterations` iterations after `warm_up` others.
  IterationSimulation(const WhatIf& what_if, JobPtr job, int warm_up,
                      int iterations);

  // Runs until every worker has done all steps.
  IterationResult Run(const WhatIfProgress& progress);

 private:
  // A frame that is sent before the simulation starts.
  struct Posted {
    PeerId to;
    Frame frame;
  };

  // Methods of SimulatedTrainer::Driver. Shards also send through Send.
  void Send(PeerId from, PeerId to, const Frame& frame) override;
  void OnBackwardDone(PeerId worker, int64_t step) override;
  void OnStepDone(PeerId worker, int64_t step) override;

  int workers() const { return job_->worker_count(); }
  ProcessId ProcessOf(PeerId peer) const {
    return peer.role == Role::kWorker ? peer.rank : workers() + peer.rank;
  }
  NodeId NodeOf(PeerId peer) const {
    return peer.role == Role::kWorker ? hosts_.HostOfWorker(peer.rank)
                                      : hosts_.HostOfShard(peer.rank);
  }
  PeerId PeerOf(ProcessId process) const {
    return process < workers() ? PeerId::Worker(process)
                               : PeerId::Shard(process - workers());
  }
  // Gives every worker the initial values.
  void FetchInitialValues();
  void Deliver(PeerId to, const Frame& frame);
  void DeliverToShard(int index, const Frame& frame);

  const JobPtr job_;
  const HostMap hosts_;  // Node of each process.
  const TrainerProgram program_;
  IterationRecord record_;
  EventQueue events_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<Shard>> shards_;               // All, by index.
  std::vector<std::unique_ptr<SimulatedTrainer>> trainers_;  // All, by rank.
  Outbox outbox_;
  int64_t link_frames_ = 0;    // Delivered frames between nodes.
  bool started_ = false;       // True once the initial values are there.
  std::deque<Posted> posted_;  // Frames before the start, in order.
};

IterationSimulation::IterationSimulation(const WhatIf& what_if, JobPtr job,
                                         int warm_up, int iterations)
    : job_(std::move(job)),
      hosts_(HostMap::Of(what_if.plan.cluster)),
      program_{job_, what_if.times, what_if.waits_in_forward,
               warm_up + iterations, CopyRate(what_if)},
      record_(*job_, static_cast<int>(hosts_.hosts()), warm_up, iterations),
      network_(MakeNetworkOptions(what_if), what_if.seed, &events_,
               [this](ProcessId, ProcessId to, const Frame& frame) {
                 Deliver(PeerOf(to), frame);
                 return true;
               }) {
  for (NodeId node = 0; node < record_.nodes(); ++node) {
    network_.SetRate(node, {what_if.node_rate, what_if.node_rate});
    network_.SetMemoryRate(node, what_if.memory_rate);
  }
  for (int index = 0; index < job_->shards(); ++index) {
    const PeerId shard = PeerId::Shard(index);
    network_.Place(ProcessOf(shard), NodeOf(shard));
    shards_.push_back(std::make_unique<Shard>(job_, index));
  }
  for (int rank = 0; rank < workers(); ++rank) {
    const PeerId worker = PeerId::Worker(rank);
    network_.Place(ProcessOf(worker), NodeOf(worker));
    TrainerDelays delays{absl::ZeroDuration(), what_if.delay_in_turn};
    if (const auto delay = what_if.delays.find(rank);
        delay != what_if.delays.end()) {
      delays.always = delay->second;
    }
    trainers_.push_back(std::make_unique<SimulatedTrainer>(
        &program_, rank, delays, &events_, this));
  }
  FetchInitialValues();
}

// Delivers the initial values in no time, to one worker after the other, so
// that few frames are in memory.
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

// Puts frames before the start in posted_, because the network would take time.
void IterationSimulation::Send(PeerId from, PeerId to, const Frame& frame) {
  if (!started_) {
    posted_.push_back({to, frame});
    return;
  }
  // Frames within a node do not count.
  const NodeId from_node = NodeOf(from);
  const NodeId to_node = NodeOf(to);
  if (from_node != to_node && frame.header.round == record_.last_step()) {
    record_.AddFrame(from_node, to_node, frame.header);
  }
  Frame ranked = frame;
  ranked.priority = job_->SendPriority(frame.header);
  ranked.fused = job_->fuses();
  network_.Send(ProcessOf(from), ProcessOf(to), ranked);
}

void IterationSimulation::Deliver(PeerId to, const Frame& frame) {
  if (NodeOf(frame.header.sender) != NodeOf(to)) ++link_frames_;
  if (to.role == Role::kWorker) {
    trainers_[to.rank]->Deliver(frame);
  } else {
    DeliverToShard(to.rank, frame);
  }
}

// Shards take no time: their arithmetic is not part of the model.
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
      for (const int32_t rank : *broadcast->to) {
        Send(self, PeerId::Worker(rank), broadcast->frame);
      }
    }
  }
  outbox_.Clear();
}

// If programs wait in forward passes, an iteration ends with the last backward.
void IterationSimulation::OnBackwardDone(PeerId, int64_t step) {
  if (program_.waits_in_forward) record_.EndStep(step, events_.now());
}

// If programs wait at the end of a step, an iteration ends when the last worker
// has all results.
void IterationSimulation::OnStepDone(PeerId worker, int64_t step) {
  const bool is_last =
      record_.WorkerDone(step, trainers_[worker.rank]->compute_time(step));
  if (is_last && !program_.waits_in_forward) {
    record_.EndStep(step, events_.now());
  }
}

// The number of frames between nodes is known beforehand (FramesPerStep), so
// progress is the share of them that has been delivered.
IterationResult IterationSimulation::Run(const WhatIfProgress& progress) {
  const auto frames =
      static_cast<double>(program_.steps * FramesPerStep(*job_, hosts_));
  for (auto& trainer : trainers_) trainer->Begin();
  while (!record_.done()) {
    NEREUS_CHECK(events_.RunNext()) << "no event is left";
    if (progress != nullptr && frames > 0 &&
        events_.events_run() % kEventsPerProgress == 0) {
      const auto delivered = static_cast<double>(link_frames_);
      progress(delivered < frames ? delivered / frames : 1.0);
    }
  }
  IterationResult result = record_.Result(workers(), TotalTime(program_.times));
  result.events = events_.events_run();
  return result;
}

// Simulates one plan. If iterations may differ and WhatIf::iterations is 0,
// doubles their number until their mean is steady.
absl::StatusOr<IterationResult> SimulateWith(const WhatIf& what_if,
                                             const Plan& plan,
                                             const WhatIfProgress& progress) {
  const JobPtr job = NEREUS_TRY(MakeSimulatedJob(what_if, plan));
  const auto simulate = [&](int warm_up, int iterations) {
    return IterationSimulation(what_if, job, warm_up, iterations).Run(progress);
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
  NEREUS_TRY(ValidateLayers(layers));
  NEREUS_TRY(plan.cluster.Validate());
  NEREUS_TRY(job.Validate());
  const auto refuse = [](const auto&... parts) {
    return InvalidArgumentError(parts...);
  };
  for (const auto& [name, count] :
       {std::pair{"workers", plan.cluster.workers},
        std::pair{"servers", plan.cluster.servers}}) {
    if (count <= kSimulatedNodesMax) continue;
    return refuse(name, " is ", count, ", can be simulated up to ",
                  kSimulatedNodesMax, ": `nereusctl plan` takes more");
  }
  if (times.size() != layers.size()) {
    return refuse("times has ", times.size(), " layers, the model ",
                  layers.size());
  }
  for (const auto& [name, rate] : {std::pair{"node_rate", node_rate},
                                   std::pair{"memory_rate", memory_rate}}) {
    if (!(rate > 0)) return refuse(name, " is ", rate, ", must be above 0");
  }
  std::vector<std::pair<std::string, absl::Duration>> durations = {
      {"latency", latency},
      {"jitter", jitter},
      {"host_copy", host_copy},
      {"delay_in_turn", delay_in_turn},
      {"message_time", message_time}};
  for (const auto& [worker, delay] : delays) {
    if (worker < 0 || worker >= plan.cluster.workers) {
      return refuse("delay of worker ", worker, ": workers are 0 to ",
                    plan.cluster.workers - 1);
    }
    durations.emplace_back(absl::StrCat("the delay of worker ", worker), delay);
  }
  for (const auto& [name, value] : durations) {
    if (value >= absl::ZeroDuration() && value <= kComputeTimeMax) continue;
    return refuse(name, " is ", absl::FormatDuration(value),
                  ", must be from 0 to ",
                  absl::FormatDuration(kComputeTimeMax));
  }
  if (iterations >= 0) return absl::OkStatus();
  return refuse("iterations is ", iterations, ", must not be below 0");
}

absl::StatusOr<PlanOptions> PlanOptionsOf(const WhatIf& what_if) {
  NEREUS_TRY(what_if.job.Validate());
  PlanOptions options = what_if.plan;
  options.rules = RulesFor(what_if.job, options.rules);
  // In partial rounds each worker of a host sends its own contribution, as if
  // it were alone.
  if (what_if.job.rounds.quorum != Quorum::kAll) options.cluster.hosts = 0;
  options.time =
      TimeModel{what_if.times,
                {what_if.node_rate, what_if.latency, what_if.message_time},
                what_if.memory_rate,
                what_if.waits_in_forward,
                1 - what_if.job.sparsity.share,
                what_if.job.overlap == Overlap::kNone};
  return options;
}

// Makes the plan once: trials change only the fusion threshold.
absl::StatusOr<IterationResult> SimulateIterations(
    const WhatIf& what_if, const WhatIfProgress& progress) {
  NEREUS_TRY(what_if.Validate());
  const PlanOptions options = NEREUS_TRY(PlanOptionsOf(what_if));
  const Plan plan = NEREUS_TRY(MakePlan(what_if.layers, options));
  if (!what_if.job.tune_fusion) return SimulateWith(what_if, plan, progress);
  WhatIf trial = what_if;
  FusionTuner tuner(plan.fusion_bytes);
  while (!tuner.done()) {
    trial.job.fusion_bytes = tuner.next();
    const IterationResult result =
        NEREUS_TRY(SimulateWith(trial, plan, progress));
    const double seconds = absl::ToDoubleSeconds(result.iteration);
    if (seconds <= 0) break;  // Nothing takes time: all thresholds are as good.
    tuner.Observe(seconds);
  }
  trial.job.fusion_bytes = tuner.best();
  return SimulateWith(trial, plan, progress);
}

}  // namespace nereus
