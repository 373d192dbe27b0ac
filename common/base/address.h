#pragma once

#include <string>

#include "common/base/status.h"

namespace nereus {

// Addresses of a process that joins a job.
struct ProcessAddress {
  // Address that other members connect to. In a job on several computers, it
  // must be one that the other computers can reach.
  std::string host = "127.0.0.1";
  // Address at which the process listens. Empty: `host`. In a container,
  // 0.0.0.0 also lets in what comes to another address of the container.
  std::string listen;
  int control_port = 0;  // Port for control calls; 0: a free port.
  int data_port = 0;     // Port for other members; 0: a free port.
  int http_port = 0;     // Port for metrics and pages over HTTP; 0: none.

  const std::string& listen_host() const {
    return listen.empty() ? host : listen;
  }

  // Returns OK, or kInvalidArgument with the field and its value.
  absl::Status Validate() const;
};

// Returns "host:port", with brackets around an IPv6 address.
std::string JoinHostPort(const std::string& host, int port);

// Returns OK unless `host` is empty or a wildcard (0.0.0.0, ::, [::] or *). A
// process can listen at a wildcard, but a peer that connects to one reaches the
// peer's own computer. Errors: kInvalidArgument.
absl::Status CheckHost(const std::string& host);

// Returns OK if `address` is "host:port", with a port from 1 to 65535. The host
// must be printable ASCII without spaces and "/", and an IPv6 address must be
// in brackets. `name`: name of the setting, for the message. Errors:
// kInvalidArgument, with `name` and `address`.
absl::Status CheckHostPort(absl::string_view name, absl::string_view address);

// Returns OK if `port` is from 0 to 65535. Errors: kInvalidArgument, with
// `name`, the name of the setting, and `port`.
absl::Status CheckPort(absl::string_view name, int port);

}  // namespace nereus
