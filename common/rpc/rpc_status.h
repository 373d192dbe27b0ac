#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "common/base/status.h"

namespace nereus {

// ToGrpcStatus and FromGrpcStatus convert between the statuses of gRPC and
// Abseil, which have the same codes. No other code converts them.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

inline absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace nereus
