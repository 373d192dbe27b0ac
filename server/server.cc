#include "server/server.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/rpc/control_server.h"
#include "common/rpc/membership_client.h"
#include "common/transport/grpc_transport.h"
#include "common/transport/machine_driver.h"
#include "server/coordinator_service.h"
#include "server/redirect_service.h"
#include "server/shard.h"

namespace nereus {
namespace {

// How long a coordinator stays for members that have not heard the end.
constexpr absl::Duration kFarewellTimeout = absl::Seconds(5);

CoordinatorOptions MakeCoordinatorOptions(const ServerOptions& options) {
  CoordinatorOptions made;
  made.job = options.job;
  made.job_id = DrawUniqueId();
  made.workers = options.workers;
  made.shards = options.shards;
  made.forced_scheme = options.forced_scheme;
  made.cost = options.cost;
  made.job_options = options.job_options;
  made.lease = options.lease;
  return made;
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options) : options_(options) {}

  ~ServerImpl() override {
    if (membership_ != nullptr) membership_->Cancel();
    if (joiner_.joinable()) joiner_.join();
    // The heartbeats use the driver, and the driver reports lost peers.
    if (membership_ != nullptr) membership_->StopHeartbeats();
    driver_.reset();
    if (transport_ != nullptr) transport_->Shutdown(absl::ZeroDuration());
    if (coordinator_ != nullptr) coordinator_->CancelJoins();
    control_.reset();
  }

  absl::Status Listen();

  int control_port() const override { return control_->port(); }
  int data_port() const override { return transport_->port(); }
  absl::Status AwaitEnd() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Join();
  void Run(const Welcome& welcome);
  void End(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  void OnVerdict(const absl::StatusOr<JobVerdict>& verdict);

  // Constant after Listen.
  const ServerOptions options_;
  std::unique_ptr<CoordinatorService> coordinator_;  // Shard 0's.
  std::unique_ptr<RedirectService> redirect_;        // The other shards'.
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<MembershipClient> membership_;

  // The joiner's, and nobody's afterwards.
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<MachineDriver> driver_;

  // What the shard holds, for heartbeats.
  std::atomic<int64_t> stored_bytes_{0};
  std::atomic<int64_t> chunks_{0};

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);

  std::thread joiner_;
};

absl::Status ServerImpl::Listen() {
  std::vector<grpc::Service*> services;
  if (options_.shard == 0) {
    coordinator_ =
        std::make_unique<CoordinatorService>(MakeCoordinatorOptions(options_));
    services = coordinator_->services();
  } else {
    redirect_ = std::make_unique<RedirectService>(options_.coordinator_address);
    services = redirect_->services();
  }
  NEREUS_ASSIGN_OR_RETURN(
      control_,
      ControlServer::Start(options_.host, options_.control_port, services));
  GrpcTransportOptions transport_options;
  transport_options.host = options_.host;
  transport_options.port = options_.data_port;
  NEREUS_ASSIGN_OR_RETURN(transport_, GrpcTransport::Start(transport_options));
  const std::string coordinator_address =
      options_.shard == 0 ? JoinHostPort(options_.host, control_->port())
                          : options_.coordinator_address;
  membership_ = std::make_unique<MembershipClient>(coordinator_address);
  joiner_ = std::thread([this] { Join(); });
  return absl::OkStatus();
}

void ServerImpl::Join() {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = options_.job;
  request.role = Role::kShard;
  request.shard = options_.shard;
  request.name = ProcessName();
  request.data_address = JoinHostPort(options_.host, transport_->port());
  absl::StatusOr<Welcome> welcome =
      membership_->Join(request, options_.connect_timeout);
  if (!welcome.ok()) {
    End(welcome.status());
    return;
  }
  Run(*welcome);
}

void ServerImpl::Run(const Welcome& welcome) {
  const PeerId self = PeerId::Shard(welcome.rank);
  shard_ = std::make_unique<Shard>(welcome.job, welcome.rank);
  chunks_ = shard_->chunk_count();
  MachineDriver::Events events;
  events.layer_done = [](const LayerDone&) {};
  events.connected = [](PeerId peer) {
    NEREUS_LOG(Debug) << PeerName(peer) << " is connected";
  };
  events.disconnected = [this](PeerId peer, const absl::Status& reason) {
    // Not yet a failure: the coordinator knows whether the peer has left.
    const std::string text(reason.ok() ? "closed by the peer"
                                       : reason.message());
    NEREUS_LOG(Info) << "no connection to " << PeerName(peer)
                     << " any more: " << text;
    membership_->ReportLostPeer(peer, text);
  };
  Hello hello;
  hello.protocol_version = kProtocolVersion;
  hello.build = kVersion;
  hello.job = welcome.job->id;
  hello.epoch = welcome.job->epoch;
  hello.model_signature = ModelSignature(welcome.job->layers);
  hello.self = self;
  transport_->SetIdentity(hello, {welcome.job->workers, welcome.job->shards()});
  driver_ = std::make_unique<MachineDriver>(self, welcome.job, transport_.get(),
                                            shard_.get(), std::move(events));
  control_->SetReady(true);
  NEREUS_LOG(Info) << "job started: epoch=" << welcome.job->epoch
                   << " workers=" << welcome.job->workers
                   << " shards=" << welcome.job->shards()
                   << " layers=" << welcome.job->layers.size()
                   << " chunks_here=" << shard_->chunk_count();
  membership_->StartHeartbeats(
      welcome, self, kHeartbeatInterval, options_.lease,
      [this](Heartbeat& heartbeat) {
        heartbeat.stored_bytes = stored_bytes_;
        heartbeat.chunks = chunks_;
        driver_->Post(
            [this](Outbox&) { stored_bytes_ = shard_->stored_bytes(); });
      },
      [this](const absl::StatusOr<JobVerdict>& verdict) {
        OnVerdict(verdict);
      });
}

void ServerImpl::OnVerdict(const absl::StatusOr<JobVerdict>& verdict) {
  if (!verdict.ok()) {
    End(verdict.status());
  } else if (verdict->state == JobState::kFailed) {
    End(absl::AbortedError(absl::StrCat("the job failed: ", verdict->reason)));
  } else if (verdict->state == JobState::kFinished) {
    End(absl::OkStatus());
  }
}

void ServerImpl::End(const absl::Status& outcome) {
  MutexLock lock(&mu_);
  if (ended_) return;
  ended_ = true;
  outcome_ = outcome;
}

absl::Status ServerImpl::AwaitEnd() {
  absl::Status outcome;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; });
    outcome = outcome_;
  }
  control_->SetReady(false);
  if (coordinator_ != nullptr) {
    coordinator_->AwaitEveryoneKnows(kFarewellTimeout);
  }
  return outcome;
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  const ClusterShape cluster{workers, shards};
  NEREUS_RETURN_IF_ERROR(cluster.Validate());
  if (shard < 0 || shard >= shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard is ", shard, ", must be in [0, ", shards, ")"));
  }
  if (shard > 0 && coordinator_address.empty()) {
    return absl::InvalidArgumentError(
        "coordinator_address is empty; every shard but 0 needs shard 0's");
  }
  NEREUS_RETURN_IF_ERROR(CheckHost(host));
  NEREUS_RETURN_IF_ERROR(CheckPort("control_port", control_port));
  NEREUS_RETURN_IF_ERROR(CheckPort("data_port", data_port));
  return MakeCoordinatorOptions(*this).Validate();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options) {
  NEREUS_RETURN_IF_ERROR(options.Validate());
  auto server = std::make_unique<ServerImpl>(options);
  NEREUS_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace nereus
