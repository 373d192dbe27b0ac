#include "common/rpc/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/rpc/control_channel.h"

namespace nereus {
namespace {

// For calls whose answer is on its way, when the server goes.
constexpr absl::Duration kGrace = absl::Seconds(1);

void EnablePluginsOnce() {
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

}  // namespace

struct ControlServer::Impl {
  std::unique_ptr<grpc::Server> server;
};

ControlServer::ControlServer() : impl_(std::make_unique<Impl>()) {}

ControlServer::~ControlServer() {
  if (impl_->server != nullptr) Shutdown(absl::Now() + kGrace);
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::string& host, int port,
    const std::vector<grpc::Service*>& services) {
  EnablePluginsOnce();
  std::unique_ptr<ControlServer> control(new ControlServer);
  grpc::ServerBuilder builder;
  // Two processes on one port would share its connections; we want an error.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kControlMessageBytesMax);
  // Members that wait ping (session_client.cc), and should not be cut off
  // for it.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  const std::string address = JoinHostPort(host, port);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                           &control->port_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  control->impl_->server = builder.BuildAndStart();
  if (control->impl_->server == nullptr || control->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for control calls at ", address,
        ": the port is in use, or the address is not this machine's"));
  }
  control->SetReady(false);
  control->impl_->server->GetHealthCheckService()->SetServingStatus("liveness",
                                                                    true);
  return control;
}

void ControlServer::SetReady(bool ready) {
  impl_->server->GetHealthCheckService()->SetServingStatus("readiness", ready);
}

void ControlServer::Shutdown(absl::Time deadline) {
  impl_->server->Shutdown(absl::ToChronoTime(deadline));
}

}  // namespace nereus
