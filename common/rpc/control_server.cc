#include "common/rpc/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstring>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/acceptor.h"
#include "common/rpc/control_channel.h"

namespace nereus {
namespace {

// Time that calls under way get when the server is destroyed.
constexpr absl::Duration kGrace = absl::Seconds(1);

// Enables health checks and reflection for all servers of this process. Does so
// once: gRPC would register them a second time.
void EnablePluginsOnce() {
  QuietGrpc();
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

}  // namespace

// Parts of the server, in the order in which they are made.
struct ControlServer::Impl {
  // Entrance for connections that the acceptor has accepted.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections;
  std::unique_ptr<grpc::Server> server;  // Calls the services.
  std::unique_ptr<Acceptor> acceptor;    // Accepts connections.
};

ControlServer::ControlServer() : impl_(std::make_unique<Impl>()) {}

ControlServer::~ControlServer() {
  // The acceptor goes first: it hands connections to the server.
  impl_->acceptor.reset();
  if (impl_->server != nullptr) Shutdown(absl::Now() + kGrace);
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::string& host, int port,
    const std::vector<grpc::Service*>& services) {
  EnablePluginsOnce();
  std::unique_ptr<ControlServer> control(new ControlServer);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kControlMessageBytesMax);
  // Allows any number of pings, which members send while the connection is
  // silent (control_channel.cc). By default gRPC ends a connection after a few
  // pings.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  control->impl_
      ->connections = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  control->impl_->server = builder.BuildAndStart();
  if (control->impl_->server == nullptr) {
    return UnavailableError("cannot start the control server");
  }
  auto* const connections = control->impl_->connections.get();
  control->impl_->acceptor =
      NEREUS_TRY(Acceptor::Start(host, port, [connections](Descriptor socket) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
            parameters;
        parameters.fd = socket.Release();
        connections->HandleNewConnection(&parameters);
      }));
  control->port_ = control->impl_->acceptor->port();
  control->SetReady(false);
  control->SetAlive(true);
  return control;
}

void ControlServer::SetReady(bool ready) {
  impl_->server->GetHealthCheckService()->SetServingStatus("readiness", ready);
}

void ControlServer::SetAlive(bool alive) {
  impl_->server->GetHealthCheckService()->SetServingStatus("liveness", alive);
}

void ControlServer::Shutdown(absl::Time deadline) {
  impl_->server->Shutdown(absl::ToChronoTime(deadline));
}

}  // namespace nereus
