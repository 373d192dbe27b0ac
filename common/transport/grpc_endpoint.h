#ifndef NEREUS_COMMON_TRANSPORT_GRPC_ENDPOINT_H_
#define NEREUS_COMMON_TRANSPORT_GRPC_ENDPOINT_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nereus {

// Channels and servers set up for bulk frames. Internal to the gRPC transport.

// A server of kFramesMethod and of nothing else.
struct GrpcEndpoint {
  // Takes a stream that has come in. Called on threads of gRPC.
  using Accept = std::function<grpc::ServerGenericBidiReactor*(
      grpc::GenericCallbackServerContext*)>;

  std::unique_ptr<grpc::CallbackGenericService> service;  // Outlives server.
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

// Errors: kUnavailable, cannot listen there, with "host:port".
absl::StatusOr<GrpcEndpoint> ListenForFrames(const std::string& host, int port,
                                             absl::Duration handshake_timeout,
                                             GrpcEndpoint::Accept accept);

// A connection of its own to "host:port"; made when first used.
//
// gRPC 1.51 runs callbacks on threads that end with the last channel or server
// of the process, and must not be the ones to destroy it: some server must
// outlive every channel.
std::shared_ptr<grpc::Channel> MakeFrameChannel(const std::string& address);

// Ends a stream that is not wanted.
grpc::ServerGenericBidiReactor* RefuseStream(grpc::Status status);

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_GRPC_ENDPOINT_H_
