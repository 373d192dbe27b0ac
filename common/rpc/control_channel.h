#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace nereus {

// Longest message in either direction: a model of 65,536 layers with the
// reasons for its routes fits.
inline constexpr int kControlMessageBytesMax = 64 << 20;

// Header by which a coordinator accepts a session; its value is "open".
inline constexpr char kSessionHeader[] = "nereus-session";

// Sends gRPC's log lines to the log of this process, at level debug. The
// statuses of calls say what matters.
void QuietGrpc();

// Returns the message of a failed call. Replaces messages of gRPC that mislead
// users.
std::string ExplainCall(const absl::Status& status);

// Returns a channel to the control port at `address` ("host:port"). It connects
// with the first call. Any thread.
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address);

}  // namespace nereus
