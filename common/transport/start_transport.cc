#include "common/transport/start_transport.h"

#include "common/transport/grpc_transport.h"
#include "common/transport/socket_transport.h"

namespace nereus {

absl::StatusOr<std::unique_ptr<Transport>> StartTransport(
    TransportType type, bool shared_memory, const std::string& host, int port) {
  if (type == TransportType::kGrpc) {
    GrpcTransportOptions options;
    options.host = host;
    options.port = port;
    return GrpcTransport::Start(options);
  }
  SocketTransportOptions options;
  options.host = host;
  options.port = port;
  options.shared_memory = shared_memory;
  return SocketTransport::Start(options);
}

}  // namespace nereus
