#ifndef NEREUS_COMMON_TRANSPORT_START_TRANSPORT_H_
#define NEREUS_COMMON_TRANSPORT_START_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/transport/transport_type.h"

namespace nereus {

// Starts one that listens at `host`:`port`. `shared_memory`: of kSocket, see
// SocketTransportOptions. Errors: as SocketTransport::Start.
absl::StatusOr<std::unique_ptr<Transport>> StartTransport(
    TransportType type, bool shared_memory, const std::string& host, int port);

}  // namespace nereus

#endif  // NEREUS_COMMON_TRANSPORT_START_TRANSPORT_H_
