#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace nereus {

// The largest message of either direction: a model of 65536 layers with the
// reasons for its routes fits.
inline constexpr int kControlMessageBytesMax = 64 << 20;

// In the headers with which a coordinator accepts a session, value "open".
inline constexpr char kSessionHeader[] = "nereus-session";

// gRPC's own log lines go to ours, at level debug: what matters of them is in
// the statuses of calls.
void QuietGrpc();

// The message of a call that has failed, in our words where gRPC's mislead.
std::string ExplainCall(const absl::Status& status);

// A channel to the control port at `address` ("host:port").
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address);

}  // namespace nereus
