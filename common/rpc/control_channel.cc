#include "common/rpc/control_channel.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include "absl/strings/match.h"
#include "common/base/logging.h"

namespace nereus {

void QuietGrpc() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    NEREUS_LOG(Debug) << "gRPC: " << args->message;
  });
}

// Explains three mistakes of users: a port that is not a coordinator's, a data
// port, and a wrong name of the host.
std::string ExplainCall(const absl::Status& status) {
  if (absl::IsUnimplemented(status)) {
    return "this is not a coordinator's control port";
  }
  const std::string message(status.message());
  const bool is_other_protocol =
      absl::StrContains(message, "Failed parsing HTTP/2") ||
      absl::StrContains(message, "http1.x server");
  if (is_other_protocol) {
    return "what listens there is not a control port; is it a --data-port?";
  }
  return absl::StrContains(message, "DNS resolution failed")
             ? "no host of this name is known"
             : message;
}

std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  // Ignores the proxy that environment variables may name: such a proxy is for
  // web pages, and the members of a job are in one network.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kControlMessageBytesMax);
  // Tries again at least once a second, so that a member which starts before
  // its coordinator soon finds it. The minimum is the time of one attempt: a
  // coordinator that is busy, or far away, may accept only seconds later.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Resolves the name again for each try: a pod that is started again has
  // another address. gRPC's own minimum between two lookups is 30 s.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  // Sends a ping when the connection was silent for 10 s, and ends the
  // connection if no answer comes within 5 s. Otherwise the member would not
  // notice that the coordinator's computer has lost its power: such a computer
  // sends nothing, not even a reset.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace nereus
