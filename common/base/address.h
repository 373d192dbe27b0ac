#pragma once

#include <string>

#include "common/base/status.h"

namespace nereus {

// Returns "host:port", with brackets around an IPv6 address.
std::string JoinHostPort(const std::string& host, int port);

// Returns OK unless `host` is empty or a wildcard like 0.0.0.0, which stands
// for all addresses of a computer. To each peer, a wildcard means its own
// computer. Errors: kInvalidArgument.
absl::Status CheckHost(const std::string& host);

// Returns OK if `address` is "host:port", with a port from 1 to 65535. Errors:
// kInvalidArgument, naming the field and its value.
absl::Status CheckHostPort(absl::string_view name, absl::string_view address);

// Returns OK if `port` is from 0 to 65535. Errors: kInvalidArgument, naming the
// field and its value.
absl::Status CheckPort(absl::string_view name, int port);

}  // namespace nereus
