#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace nereus {

// Largest message in bytes (64 MiB), in either direction. The plan of a model
// of 65,536 layers fits, with the reasons for its routes.
inline constexpr int kControlMessageBytesMax = 64 << 20;

// Name of the gRPC header that a coordinator sends when it accepts a session.
// The value is "open".
inline constexpr char kSessionHeader[] = "nereus-session";

// Sends gRPC's log lines to the log of this process, at level debug. Users need
// not see them: the status of a failed call has the error.
void QuietGrpc();

// Returns the message to show for the failed call with `status`. Replaces
// messages of gRPC that mislead users.
std::string ExplainCall(const absl::Status& status);

// Returns a gRPC channel to the control port at `address` ("host:port"). The
// channel connects when the first call is made on it. Thread-safe.
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address);

}  // namespace nereus
