#include "server/server.h"

#include <atomic>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/identity.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/protocol/member.h"
#include "common/rpc/control_server.h"
#include "common/rpc/session_client.h"
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
  made.min_workers = options.min_workers;
  made.max_workers = options.max_workers;
  return made;
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options) : options_(options) {}

  ~ServerImpl() override {
    // The session posts to the driver, and the driver sends in the session.
    if (driver_ != nullptr) driver_->Stop();
    session_.reset();
    driver_.reset();
    if (transport_ != nullptr) transport_->Shutdown(absl::ZeroDuration());
    if (coordinator_ != nullptr) coordinator_->EndSessions();
    control_.reset();
  }

  absl::Status Listen();

  int control_port() const override { return control_->port(); }
  int data_port() const override { return transport_->port(); }
  absl::Status AwaitEnd() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Join();
  void StartDriver();
  void StartSession();
  void OnEntered(const EpochStart& start);
  void End(const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after Listen.
  const ServerOptions options_;
  std::unique_ptr<CoordinatorService> coordinator_;  // Shard 0's.
  std::unique_ptr<RedirectService> redirect_;        // The other shards'.
  std::unique_ptr<ControlServer> control_;
  std::unique_ptr<Transport> transport_;
  std::string coordinator_address_;

  std::unique_ptr<Member> member_;  // The driver's alone.
  Shard* shard_ = nullptr;          // The member's.
  std::unique_ptr<SessionClient> session_;
  std::unique_ptr<MachineDriver> driver_;

  // What the shard holds, for heartbeats.
  std::atomic<int64_t> stored_bytes_{0};
  std::atomic<int64_t> chunks_{0};

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);
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
  coordinator_address_ = coordinator_address;
  Join();
  return absl::OkStatus();
}

void ServerImpl::Join() {
  JoinRequest request;
  request.protocol_version = kProtocolVersion;
  request.build = kVersion;
  request.job = options_.job;
  request.role = Role::kShard;
  request.shard = options_.shard;
  request.incarnation = DrawUniqueId();
  request.name = ProcessName();
  request.data_address = JoinHostPort(options_.host, transport_->port());
  member_ = std::make_unique<Member>(
      std::move(request), [this](const EpochStart& start, Outbox&) {
        auto shard = std::make_unique<Shard>(start.job, start.self.rank);
        shard_ = shard.get();
        chunks_ = shard->chunk_count();
        return shard;
      });
  StartDriver();
  StartSession();
}

void ServerImpl::StartDriver() {
  MachineDriver::Events events;
  events.layer_done = [](const LayerDone&) {};
  events.send_message = [this](const MemberMessage& message) {
    session_->Send(message);
  };
  events.entered = [this](const std::shared_ptr<const EpochStart>& start) {
    OnEntered(*start);
  };
  events.ended = [this](const absl::Status& outcome) { End(outcome); };
  driver_ = std::make_unique<MachineDriver>(
      transport_.get(), member_.get(), /*layers=*/0, options_.connect_timeout,
      std::move(events));
}

void ServerImpl::StartSession() {
  SessionClientOptions session_options;
  session_options.coordinator_address = coordinator_address_;
  session_options.connect_timeout = options_.connect_timeout;
  session_options.patience = options_.lease;
  SessionClient::Events events;
  events.opened = [this] {
    driver_->Post([this](Outbox& out) { member_->OnSession(out); });
  };
  events.message = [this](const CoordinatorMessage& message) {
    if (const auto* waiting = std::get_if<Waiting>(&message)) {
      NEREUS_LOG(Info) << waiting->text;
    }
    driver_->Post(
        [this, message](Outbox& out) { member_->OnMessage(message, out); });
  };
  events.heartbeat = [this] {
    driver_->Post([this](Outbox&) {
      if (shard_ != nullptr) stored_bytes_ = shard_->stored_bytes();
    });
    Heartbeat heartbeat;
    heartbeat.stored_bytes = stored_bytes_;
    heartbeat.chunks = chunks_;
    return heartbeat;
  };
  events.failed = [this](const absl::Status& why) { End(why); };
  session_ = std::make_unique<SessionClient>(std::move(session_options),
                                             std::move(events));
  session_->Start();
}

void ServerImpl::OnEntered(const EpochStart& start) {
  control_->SetReady(true);
  NEREUS_LOG(Info) << "epoch " << start.job->epoch
                   << ": workers=" << start.job->worker_count()
                   << " shards=" << start.job->shards()
                   << " layers=" << start.job->layers.size()
                   << " chunks_here=" << chunks_;
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
  // Ends the session: that tells the coordinator that this member knows.
  session_->Stop();
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
