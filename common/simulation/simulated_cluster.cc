#include "common/simulation/simulated_cluster.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/version.h"
#include "common/compute/arithmetic.h"

namespace nereus {
namespace {

// Joins are numbered shards first, then workers.
constexpr char kJobName[] = "simulated";
constexpr absl::Duration kJoinSpread = absl::Milliseconds(50);

CoordinatorOptions MakeCoordinatorOptions(
    const SimulatedClusterOptions& options) {
  CoordinatorOptions made;
  made.job = kJobName;
  made.job_id = options.seed + 1;
  made.workers = options.workers;
  made.shards = options.shards;
  made.forced_scheme = options.forced_scheme;
  made.job_options = options.job;
  return made;
}

absl::Span<float> Floats(const Buffer& buffer) {
  return absl::MakeSpan(buffer.floats(),
                        static_cast<size_t>(buffer.float_count()));
}

Buffer AllocateFloats(int64_t count) {
  return Buffer::AllocateZeroed(count * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

SimulatedCluster::SimulatedCluster(const SimulatedClusterOptions& options,
                                   Workload workload)
    : options_(options),
      workload_(std::move(workload)),
      random_(options.seed),
      network_(options.network, random_.Next(), &events_,
               [this](PeerId from, PeerId to, const Frame& frame) {
                 Deliver(from, to, frame);
               }),
      coordinator_(MakeCoordinatorOptions(options)),
      shards_(options.shards),
      workers_(options.workers),
      node_bytes_(std::max(options.workers, options.shards), 0) {
  for (int shard = 0; shard < options.shards; ++shard) {
    events_.After(Draw(kJoinSpread),
                  [this, shard] { Join(Role::kShard, shard); });
  }
  for (int worker = 0; worker < options.workers; ++worker) {
    events_.After(Draw(kJoinSpread),
                  [this, worker] { Join(Role::kWorker, worker); });
  }
}

void SimulatedCluster::Join(Role role, int index) {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = kJobName;
  request.role = role;
  request.shard = index;
  request.name = absl::StrCat(role == Role::kShard ? "s" : "w", index);
  request.data_address = request.name;
  if (role == Role::kWorker) request.layers = workload_.layers;
  const JoinId join = role == Role::kShard ? index : options_.shards + index;
  CoordinatorOutbox out;
  coordinator_.OnJoin(join, request, events_.now(), out);
  Carry(out);
}

void SimulatedCluster::Carry(CoordinatorOutbox& out) {
  for (const CoordinatorAction& action : out) {
    if (const auto* refused = std::get_if<RefuseJoin>(&action)) {
      failure_.Update(refused->why);
    } else if (const auto* admitted = std::get_if<AdmitMember>(&action)) {
      events_.After(Draw(options_.network.delay_max),
                    [this, admitted = *admitted] { Admit(admitted); });
    }
  }
}

void SimulatedCluster::Admit(const AdmitMember& admitted) {
  const Welcome& welcome = admitted.welcome;
  PeerId self = PeerId::Shard(welcome.rank);
  if (admitted.join < options_.shards) {
    shards_[welcome.rank] = std::make_unique<Shard>(welcome.job, welcome.rank);
  } else {
    self = PeerId::Worker(welcome.rank);
    StartWorker(welcome.rank, static_cast<int>(admitted.join));
  }
  std::vector<EarlyFrame> early = std::exchange(early_frames_, {});
  for (const EarlyFrame& each : early) {
    if (each.to == self) {
      Receive(each.from, each.to, each.frame);
    } else {
      early_frames_.push_back(each);
    }
  }
}

void SimulatedCluster::StartWorker(int rank, int join_index) {
  Worker& worker = workers_[rank];
  for (size_t i = 0; i < workload_.layers.size(); ++i) {
    const LayerSpec& layer = workload_.layers[i];
    worker.parameters.push_back(AllocateFloats(layer.parameters));
    worker.gradients.push_back(AllocateFloats(layer.parameters));
    const bool factors = GaveFactors(static_cast<int>(i));
    worker.output_gradients.push_back(
        AllocateFloats(factors ? layer.rows * layer.m : 0));
    worker.inputs.push_back(AllocateFloats(factors ? layer.rows * layer.n : 0));
    // Each process comes with parameters of its own; all but worker 0's are
    // replaced.
    workload_.initialize(rank == 0 ? 0 : join_index, static_cast<int>(i),
                         Floats(worker.parameters.back()));
  }
  worker.machine = std::make_unique<WorkerMachine>(coordinator_.job(), rank,
                                                   worker.parameters);
  worker.layers_left = static_cast<int>(workload_.layers.size());
  Outbox out;
  worker.machine->Start(out);
  Execute(PeerId::Worker(rank), out);
}

bool SimulatedCluster::GaveFactors(int layer) const {
  return workload_.factors != nullptr &&
         workload_.layers[layer].kind == LayerKind::kFullyConnected;
}

void SimulatedCluster::StartStep(int rank) {
  Worker& worker = workers_[rank];
  worker.layers_left = static_cast<int>(workload_.layers.size());
  const int last = worker.layers_left - 1;
  events_.After(Draw(options_.layer_time_max),
                [this, rank, last] { Backward(rank, last); });
}

void SimulatedCluster::Backward(int rank, int layer) {
  Outbox out;
  Push(rank, layer, out);
  Execute(PeerId::Worker(rank), out);
  if (layer == 0) return;
  events_.After(Draw(options_.layer_time_max),
                [this, rank, layer] { Backward(rank, layer - 1); });
}

void SimulatedCluster::Push(int rank, int layer, Outbox& out) {
  Worker& worker = workers_[rank];
  const auto parameters = Floats(worker.parameters[layer]);
  absl::Status status;
  if (GaveFactors(layer)) {
    workload_.factors(rank, worker.step, layer, parameters,
                      Floats(worker.output_gradients[layer]),
                      Floats(worker.inputs[layer]));
    status = worker.machine->OnPushFactors(
        layer, worker.step,
        FactorBuffers{worker.output_gradients[layer], worker.inputs[layer],
                      worker.gradients[layer]},
        out);
  } else {
    workload_.gradient(rank, worker.step, layer, parameters,
                       Floats(worker.gradients[layer]));
    status = worker.machine->OnPush(layer, worker.step, worker.gradients[layer],
                                    out);
  }
  failure_.Update(status);
}

void SimulatedCluster::OnLayerDone(int rank, const LayerDone& done) {
  Worker& worker = workers_[rank];
  NEREUS_CHECK(done.round == worker.step)
      << "layer " << done.layer << " is done with round " << done.round
      << " in step " << worker.step;
  if (--worker.layers_left > 0) return;
  ++worker.step;
  if (worker.step < steps_wanted_) StartStep(rank);
}

Machine* SimulatedCluster::FindMachine(PeerId peer) {
  if (peer.role == Role::kShard) return shards_[peer.rank].get();
  return workers_[peer.rank].machine.get();
}

void SimulatedCluster::Deliver(PeerId from, PeerId to, const Frame& frame) {
  if (FindMachine(to) == nullptr) {
    early_frames_.push_back({from, to, frame});
    return;
  }
  Receive(from, to, frame);
}

void SimulatedCluster::Receive(PeerId from, PeerId to, const Frame& frame) {
  Machine* const machine = FindMachine(to);
  const auto landing = machine->OnHeader(from, frame.header);
  if (!landing.ok()) {
    failure_.Update(absl::InternalError(absl::StrCat(
        PeerName(to), " refused a frame: ", landing.status().message())));
    return;
  }
  if (landing->kind == Landing::Kind::kDiscard) return;
  Frame received{frame.header, Buffer::Allocate(frame.payload.bytes())};
  if (landing->kind == Landing::Kind::kPlace) received.payload = landing->place;
  if (frame.payload.bytes() > 0) {
    std::memcpy(received.payload.data(), frame.payload.data(),
                static_cast<size_t>(frame.payload.bytes()));
  }
  Outbox out;
  machine->OnFrame(from, received, out);
  Execute(to, out);
}

void SimulatedCluster::Execute(PeerId self, Outbox& out) {
  for (const Action& action : out.actions()) {
    if (ExecuteArithmetic(action)) continue;
    if (const auto* send = std::get_if<SendFrame>(&action)) {
      Transmit(self, send->to, send->frame);
    } else if (const auto* broadcast = std::get_if<BroadcastFrame>(&action)) {
      for (int rank = 0; rank < options_.workers; ++rank) {
        const PeerId to = PeerId::Worker(rank);
        if (to != self) Transmit(self, to, broadcast->frame);
      }
    } else if (const auto* done = std::get_if<LayerDone>(&action)) {
      events_.After(absl::ZeroDuration(), [this, self, done = *done] {
        OnLayerDone(self.rank, done);
      });
    }
  }
}

void SimulatedCluster::Transmit(PeerId from, PeerId to, const Frame& frame) {
  if (from.rank != to.rank) {
    const int64_t bytes = kFrameHeaderBytes + frame.payload.bytes();
    node_bytes_[from.rank] += bytes;
    node_bytes_[to.rank] += bytes;
  }
  network_.Send(from, to, frame);
}

absl::Status SimulatedCluster::RunSteps(int64_t steps) {
  const int64_t before = steps_wanted_;
  steps_wanted_ = steps;
  for (int rank = 0; rank < options_.workers; ++rank) {
    if (workers_[rank].machine != nullptr && workers_[rank].step == before &&
        before < steps) {
      StartStep(rank);
    }
  }
  const auto done = [&] {
    return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
      return w.machine != nullptr && w.step >= steps;
    });
  };
  while (failure_.ok() && !done()) {
    if (!events_.RunNext()) return absl::DeadlineExceededError(DescribeWaits());
  }
  return failure_;
}

std::string SimulatedCluster::DescribeWaits() const {
  std::string text = "nothing moves any more";
  for (int rank = 0; rank < options_.workers; ++rank) {
    const Worker& worker = workers_[rank];
    if (worker.machine == nullptr) {
      absl::StrAppend(&text, "; worker ", rank, " has not been admitted");
      continue;
    }
    for (size_t layer = 0; layer < workload_.layers.size(); ++layer) {
      const Syncer& syncer = worker.machine->syncer(static_cast<int>(layer));
      if (syncer.done_round() >= worker.step) continue;
      absl::StrAppend(&text, "; worker ", rank, " in step ", worker.step,
                      " waits in layer ", workload_.layers[layer].name, " for ",
                      syncer.Missing());
    }
  }
  return text;
}

absl::Span<const float> SimulatedCluster::parameters(int worker,
                                                     int layer) const {
  return Floats(workers_[worker].parameters[layer]);
}

absl::Span<const float> SimulatedCluster::mean_gradient(int worker,
                                                        int layer) const {
  return Floats(workers_[worker].gradients[layer]);
}

}  // namespace nereus
