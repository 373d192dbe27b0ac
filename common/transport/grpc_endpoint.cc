#include "common/transport/grpc_endpoint.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/protocol/frame.h"
#include "common/transport/grpc_connection.h"

namespace nereus {
namespace {

// A longer message ends its stream before it is read.
constexpr int kMessageMax = static_cast<int>(kMessageBytesMax);

struct ChannelArgument {
  const char* name;
  int value;
};

// For both sides.
constexpr ChannelArgument kArguments[] = {
    // What gRPC may hold for a slow owner: one window per stream.
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20},
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20},
    // Gradients hardly compress, and a stranger's message must not expand.
    {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
    {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
    // A machine that lost its power closes no socket.
    {GRPC_ARG_KEEPALIVE_TIME_MS, 30'000},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000},
    {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
};

constexpr ChannelArgument kServerArguments[] = {
    // A port in use must be an error, not shared.
    {GRPC_ARG_ALLOW_REUSEPORT, 0},
    {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000},
    // A peer needs one stream.
    {GRPC_ARG_MAX_CONCURRENT_STREAMS, 4},
    // Connections on which nobody opens a stream.
    {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 30'000},
};

constexpr ChannelArgument kClientArguments[] = {
    {GRPC_ARG_ENABLE_HTTP_PROXY, 0},
    {GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1},
    // Retries would keep payloads referenced until there is an answer.
    {GRPC_ARG_ENABLE_RETRIES, 0},
    // One TCP connection per peer, and per attempt: a failed one must not be
    // remembered.
    {GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1},
};

class FrameService final : public grpc::CallbackGenericService {
 public:
  explicit FrameService(GrpcEndpoint::Accept accept)
      : accept_(std::move(accept)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    if (context->method() != kFramesMethod) {
      return RefuseStream(
          grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                       absl::StrCat("this port serves ", kFramesMethod)));
    }
    return accept_(context);
  }

 private:
  const GrpcEndpoint::Accept accept_;
};

class RefusedStream final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

absl::StatusOr<GrpcEndpoint> ListenForFrames(const std::string& host, int port,
                                             absl::Duration handshake_timeout,
                                             GrpcEndpoint::Accept accept) {
  GrpcEndpoint endpoint;
  endpoint.service = std::make_unique<FrameService>(std::move(accept));
  const std::string address = JoinHostPort(host, port);

  grpc::ServerBuilder builder;
  for (const ChannelArgument& argument : kArguments) {
    builder.AddChannelArgument(argument.name, argument.value);
  }
  for (const ChannelArgument& argument : kServerArguments) {
    builder.AddChannelArgument(argument.name, argument.value);
  }
  builder.AddChannelArgument(
      GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
      static_cast<int>(absl::ToInt64Milliseconds(handshake_timeout)));
  builder.SetMaxReceiveMessageSize(kMessageMax);
  builder.SetMaxSendMessageSize(kMessageMax);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(),
                           &endpoint.port);
  builder.RegisterCallbackGenericService(endpoint.service.get());
  endpoint.server = builder.BuildAndStart();
  if (endpoint.server == nullptr || endpoint.port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for data at ", address,
                     ": the port is in use, or the host is not this machine"));
  }
  return endpoint;
}

std::shared_ptr<grpc::Channel> MakeFrameChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  for (const ChannelArgument& argument : kArguments) {
    arguments.SetInt(argument.name, argument.value);
  }
  for (const ChannelArgument& argument : kClientArguments) {
    arguments.SetInt(argument.name, argument.value);
  }
  arguments.SetMaxReceiveMessageSize(kMessageMax);
  arguments.SetMaxSendMessageSize(kMessageMax);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

grpc::ServerGenericBidiReactor* RefuseStream(grpc::Status status) {
  return new RefusedStream(std::move(status));
}

}  // namespace nereus
