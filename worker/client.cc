#include "worker/public/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/rpc/control_server.h"
#include "common/rpc/membership_client.h"
#include "common/transport/grpc_transport.h"
#include "common/transport/machine_driver.h"
#include "worker/round_table.h"
#include "worker/worker_machine.h"

namespace nereus {
namespace {

constexpr absl::Duration kCoordinatorPatience = absl::Seconds(10);
constexpr absl::Duration kFlushTimeout = absl::Seconds(5);

absl::Status CheckLength(const LayerSpec& layer, absl::string_view what,
                         size_t found, int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " has ", found, " floats, layer ", layer.name, " has ", expected));
}

absl::StatusOr<std::vector<LayerSpec>> SpecsOf(
    const std::vector<LayerBinding>& layers) {
  std::vector<LayerSpec> specs;
  for (const LayerBinding& layer : layers) {
    NEREUS_RETURN_IF_ERROR(CheckLength(layer.spec, "the parameter memory",
                                       layer.parameters.size(),
                                       layer.spec.parameters));
    specs.push_back(layer.spec);
  }
  NEREUS_RETURN_IF_ERROR(ValidateLayers(specs));
  return specs;
}

bool HasFactorRoutes(const Job& job) {
  return std::any_of(
      job.routes.begin(), job.routes.end(),
      [](const Route& route) { return route.scheme == Scheme::kFactor; });
}

// A worker's side of a job: the machine and what drives it.
//
//   caller's threads --Post--> driver's thread (machine, arithmetic) -->
//   transport
//          ^                        |
//          '------ RoundTable <-----'
class ClientImpl final : public Client {
 public:
  ClientImpl(const ClientOptions& options, std::vector<LayerBinding> layers)
      : options_(options), layers_(std::move(layers)) {}
  ~ClientImpl() override;

  // Joins and connects; the initial parameters are there when it returns.
  absl::Status Start(const std::vector<LayerSpec>& specs);

  int rank() const override { return rank_; }
  int workers() const override { return job_->workers; }
  absl::Status Push(int layer, int64_t step,
                    absl::Span<float> gradient) override;
  absl::Status PushFactors(int layer, int64_t step, const Factors& factors,
                           absl::Span<float> gradient) override;
  absl::Status Wait(int layer, int64_t step) override;
  absl::Status WaitAll(int64_t step) override;
  bool takes_factors(int layer) const override {
    return rounds_->CheckLayer(layer).ok() &&
           job_->routes[layer].scheme == Scheme::kFactor;
  }
  bool updates_parameters() const override {
    return job_->options.optimizer_place == OptimizerPlace::kWorker;
  }
  const OptimizerOptions& optimizer() const override {
    return job_->options.optimizer;
  }
  std::vector<LayerReport> layer_reports() const override;
  std::vector<PeerTraffic> traffic() const override;
  absl::Status Leave() override;

 private:
  absl::Status Listen();
  absl::StatusOr<Welcome> Join(std::vector<LayerSpec> specs);
  void StartMachine();
  void StartHeartbeats(const Welcome& welcome);
  void ConnectPeers(const Welcome& welcome);
  void OnDisconnected(PeerId peer, const absl::Status& reason);
  void OnVerdict(const absl::StatusOr<JobVerdict>& verdict);
  std::string DescribeMissing(int layer);

  // Constant after Start.
  const ClientOptions options_;
  const std::vector<LayerBinding> layers_;
  int rank_ = 0;
  JobPtr job_;
  std::vector<RouteExplanation> explanations_;
  std::shared_ptr<RoundTable> rounds_;  // Shared with the buffers lent out.
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MembershipClient> membership_;
  std::unique_ptr<WorkerMachine> machine_;  // The driver's alone.
  std::unique_ptr<MachineDriver> driver_;

  Notification over_;  // The job is finished, or has failed.
};

ClientImpl::~ClientImpl() {
  // The heartbeats use the driver, and the driver reports lost peers.
  if (membership_ != nullptr) membership_->StopHeartbeats();
  driver_.reset();
  if (transport_ != nullptr) transport_->Shutdown(absl::ZeroDuration());
  machine_.reset();
  transport_.reset();
  if (rounds_ != nullptr && !rounds_->AwaitReturned(kFlushTimeout)) {
    NEREUS_LOG(Error)
        << "the caller's memory is still in use after closing all "
           "connections";
  }
}

absl::Status ClientImpl::Listen() {
  NEREUS_ASSIGN_OR_RETURN(
      control_, ControlServer::Start(options_.host, options_.control_port, {}));
  GrpcTransportOptions transport_options;
  transport_options.host = options_.host;
  transport_options.port = options_.data_port;
  NEREUS_ASSIGN_OR_RETURN(transport_, GrpcTransport::Start(transport_options));
  NEREUS_LOG(Info) << "listening control="
                   << JoinHostPort(options_.host, control_->port()) << " data="
                   << JoinHostPort(options_.host, transport_->port());
  return absl::OkStatus();
}

absl::StatusOr<Welcome> ClientImpl::Join(std::vector<LayerSpec> specs) {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = options_.job;
  request.role = Role::kWorker;
  request.name = options_.name.empty() ? ProcessName() : options_.name;
  request.data_address = JoinHostPort(options_.host, transport_->port());
  request.layers = std::move(specs);
  membership_ =
      std::make_unique<MembershipClient>(options_.coordinator_address);
  return membership_->Join(request, options_.connect_timeout);
}

absl::Status ClientImpl::Start(const std::vector<LayerSpec>& specs) {
  NEREUS_RETURN_IF_ERROR(Listen());
  NEREUS_ASSIGN_OR_RETURN(const Welcome welcome, Join(specs));
  if (welcome.job->layers != specs) {
    return absl::InternalError(
        "the coordinator's welcome has another model than this worker joined "
        "with");
  }
  rank_ = welcome.rank;
  job_ = welcome.job;
  explanations_ = welcome.explanations;
  rounds_ = std::make_shared<RoundTable>(job_);
  StartMachine();
  StartHeartbeats(welcome);
  ConnectPeers(welcome);
  driver_->Post([this](Outbox& out) { machine_->Start(out); });
  NEREUS_RETURN_IF_ERROR(WaitAll(kInitialRound));
  control_->SetReady(true);
  return absl::OkStatus();
}

void ClientImpl::StartMachine() {
  const PeerId self = PeerId::Worker(rank_);
  std::vector<Buffer> parameters;
  for (const LayerBinding& layer : layers_) {
    parameters.push_back(rounds_->LendParameters(layer.parameters));
  }
  machine_ =
      std::make_unique<WorkerMachine>(job_, rank_, std::move(parameters));
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.build = kVersion;
  hello.job = job_->id;
  hello.epoch = job_->epoch;
  hello.model_signature = ModelSignature(job_->layers);
  hello.self = self;
  transport_->SetIdentity(hello, {job_->workers, job_->shards()});
  MachineDriver::Events events;
  events.layer_done = [this](const LayerDone& done) {
    rounds_->Finish(done.layer, done.round, SteadyNow());
  };
  events.connected = [](PeerId peer) {
    NEREUS_LOG(Debug) << PeerName(peer) << " is connected";
  };
  events.disconnected = [this](PeerId peer, const absl::Status& reason) {
    OnDisconnected(peer, reason);
  };
  driver_ = std::make_unique<MachineDriver>(self, job_, transport_.get(),
                                            machine_.get(), std::move(events));
}

void ClientImpl::StartHeartbeats(const Welcome& welcome) {
  membership_->StartHeartbeats(
      welcome, PeerId::Worker(rank_), kHeartbeatInterval, kCoordinatorPatience,
      [this](Heartbeat& heartbeat) { heartbeat.round = rounds_->round(); },
      [this](const absl::StatusOr<JobVerdict>& verdict) {
        OnVerdict(verdict);
      });
}

void ClientImpl::ConnectPeers(const Welcome& welcome) {
  const absl::Time deadline = absl::Now() + options_.connect_timeout;
  for (int shard = 0; shard < job_->shards(); ++shard) {
    transport_->Connect(PeerId::Shard(shard), welcome.shard_addresses[shard],
                        deadline);
  }
  if (!HasFactorRoutes(*job_)) return;  // Workers have nothing to say then.
  // Of two workers, the one with the higher rank connects.
  for (int worker = 0; worker < rank_; ++worker) {
    transport_->Connect(PeerId::Worker(worker),
                        welcome.worker_addresses[worker], deadline);
  }
}

void ClientImpl::OnDisconnected(PeerId peer, const absl::Status& reason) {
  // Not yet a failure: the coordinator knows whether the peer has left.
  const std::string text(reason.ok() ? "closed by the peer" : reason.message());
  NEREUS_LOG(Info) << "no connection to " << PeerName(peer)
                   << " any more: " << text;
  membership_->ReportLostPeer(peer, text);
}

void ClientImpl::OnVerdict(const absl::StatusOr<JobVerdict>& verdict) {
  if (!verdict.ok()) {
    rounds_->Fail(verdict.status());
  } else if (verdict->state == JobState::kFailed) {
    rounds_->Fail(
        absl::AbortedError(absl::StrCat("the job failed: ", verdict->reason)));
  } else if (verdict->state != JobState::kFinished) {
    return;
  }
  over_.Notify();
}

absl::Status ClientImpl::Push(int layer, int64_t step,
                              absl::Span<float> gradient) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  const LayerSpec& spec = job_->layers[layer];
  NEREUS_RETURN_IF_ERROR(
      CheckLength(spec, "the gradient", gradient.size(), spec.parameters));
  if (takes_factors(layer)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "layer ", spec.name, " goes by factors: push them with PushFactors"));
  }
  NEREUS_RETURN_IF_ERROR(rounds_->BeginPush(layer, step, SteadyNow()));
  Buffer buffer = rounds_->Borrow(layer, gradient.data(), gradient.size());
  driver_->Post(
      [this, layer, step, buffer = std::move(buffer)](Outbox& out) mutable {
        const absl::Status status =
            machine_->OnPush(layer, step, std::move(buffer), out);
        NEREUS_CHECK(status.ok()) << status;
      });
  return absl::OkStatus();
}

absl::Status ClientImpl::PushFactors(int layer, int64_t step,
                                     const Factors& factors,
                                     absl::Span<float> gradient) {
  NEREUS_RETURN_IF_ERROR(rounds_->CheckLayer(layer));
  const LayerSpec& spec = job_->layers[layer];
  if (spec.kind != LayerKind::kFullyConnected) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", DescribeLayer(spec), " has no factors"));
  }
  NEREUS_RETURN_IF_ERROR(CheckLength(spec, "the output gradient",
                                     factors.output_gradient.size(),
                                     spec.rows * spec.m));
  NEREUS_RETURN_IF_ERROR(
      CheckLength(spec, "the input", factors.input.size(), spec.rows * spec.n));
  if (updates_parameters() || !gradient.empty()) {
    NEREUS_RETURN_IF_ERROR(
        CheckLength(spec, "the gradient", gradient.size(), spec.parameters));
  }
  NEREUS_RETURN_IF_ERROR(rounds_->BeginPush(layer, step, SteadyNow()));
  FactorBuffers buffers{
      rounds_->Borrow(layer, factors.output_gradient.data(),
                      factors.output_gradient.size()),
      rounds_->Borrow(layer, factors.input.data(), factors.input.size()),
      rounds_->Borrow(layer, gradient.data(), gradient.size())};
  driver_->Post(
      [this, layer, step, buffers = std::move(buffers)](Outbox& out) mutable {
        const absl::Status status =
            machine_->OnPushFactors(layer, step, std::move(buffers), out);
        NEREUS_CHECK(status.ok()) << status;
      });
  return absl::OkStatus();
}

absl::Status ClientImpl::Wait(int layer, int64_t step) {
  const absl::Status status =
      rounds_->Await(layer, step, options_.round_timeout);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; missing: ", DescribeMissing(layer)));
}

std::string ClientImpl::DescribeMissing(int layer) {
  // The machine is the driver's; both hold the answer, whoever is done with it
  // last.
  auto missing = std::make_shared<std::string>();
  auto asked = std::make_shared<Notification>();
  driver_->Post([this, layer, missing, asked](Outbox&) {
    *missing = machine_->syncer(layer).Missing();
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
  std::vector<LayerReport> reports;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int layer = static_cast<int>(i);
    const RoundTable::Cost cost = rounds_->cost(layer);
    reports.push_back(
        {job_->layers[i].name, std::string(SchemeName(job_->routes[i].scheme)),
         explanations_[i].reason, cost.rounds, driver_->bytes_sent(layer),
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

absl::Status ClientImpl::Leave() {
  NEREUS_RETURN_IF_ERROR(rounds_->failure());
  NEREUS_RETURN_IF_ERROR(membership_->Leave());
  // Peers may still need frames of this worker's last round, so the connections
  // stay until every worker has left.
  const bool over = over_.WaitWithTimeout(options_.round_timeout);
  NEREUS_RETURN_IF_ERROR(rounds_->failure());
  rounds_->Fail(absl::FailedPreconditionError("this worker has left the job"));
  if (over) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("left the job, but not all the other workers did within ",
                   absl::FormatDuration(options_.round_timeout)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options, std::vector<LayerBinding> layers) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  NEREUS_ASSIGN_OR_RETURN(const std::vector<LayerSpec> specs, SpecsOf(layers));
  auto client = std::make_unique<ClientImpl>(options, std::move(layers));
  NEREUS_RETURN_IF_ERROR(client->Start(specs));
  return client;
}

}  // namespace nereus
