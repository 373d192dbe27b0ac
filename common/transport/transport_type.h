#ifndef NEREUS_COMMON_TRANSPORT_TRANSPORT_TYPE_H_
#define NEREUS_COMMON_TRANSPORT_TRANSPORT_TYPE_H_

#include "absl/strings/string_view.h"

namespace nereus {

// How frames travel between processes; the same for all members of a job.
enum class TransportType {
  kSocket,  // "socket": plain TCP connections (SocketTransport).
  kGrpc,    // "grpc": streams of byte buffers (GrpcTransport).
};

constexpr absl::string_view TransportTypeName(TransportType type) {
  return type == TransportType::kSocket ? "socket" : "grpc";
}

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_TRANSPORT_TYPE_H_
