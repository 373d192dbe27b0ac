#pragma once

#include <string>

#include "common/base/status.h"

namespace nereus {

// Returns "host:port"; an IPv6 address gets its brackets.
std::string JoinHostPort(const std::string& host, int port);

// Returns OK if peers could reach a process that listens at `host`. Refuses an
// empty host, and an address like 0.0.0.0 that stands for all addresses of a
// machine: each peer would take it for its own machine. Errors:
// kInvalidArgument.
absl::Status CheckHost(const std::string& host);

// Returns OK if `address` is "host:port", with a port from 1 to 65535. Errors:
// kInvalidArgument, naming the field and its value.
absl::Status CheckHostPort(absl::string_view name, absl::string_view address);

// Returns OK if `port` is from 0 to 65535. Errors: kInvalidArgument, naming the
// field and its value.
absl::Status CheckPort(absl::string_view name, int port);

}  // namespace nereus
