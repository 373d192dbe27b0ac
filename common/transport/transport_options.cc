#include "common/transport/transport_options.h"

#include "common/base/status.h"

namespace nereus {

absl::Status TransportOptions::Validate() const {
  const auto refuse = [](const auto&... why) {
    return InvalidArgumentError("transport: ", why...);
  };
  if (host.empty()) return refuse("host is empty");
  if (port < 0 || port > 65535) {
    return refuse("port is ", port, ", it must be from 0 to 65535");
  }
  if (handshake_timeout <= absl::ZeroDuration()) {
    return refuse("handshake_timeout is ",
                  absl::FormatDuration(handshake_timeout),
                  ", it must be positive");
  }
  if (closing_timeout <= absl::ZeroDuration()) {
    return refuse("closing_timeout is ", absl::FormatDuration(closing_timeout),
                  ", it must be positive");
  }
  if (handshakes_max > 0) return absl::OkStatus();
  return refuse("handshakes_max is ", handshakes_max, ", it must be positive");
}

}  // namespace nereus
