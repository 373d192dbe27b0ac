#pragma once

#include <string>

#include "absl/status/status.h"

namespace nereus {

// "host:port"; an IPv6 address gets its brackets.
std::string JoinHostPort(const std::string& host, int port);

// OK if a process can listen at `host` and its peers reach it there: not empty,
// and not an address that means "all of mine", which means another machine to
// each. Errors: kInvalidArgument.
absl::Status CheckHost(const std::string& host);

// OK if `address` is "host:port", with a port from 1 to 65535. Errors:
// kInvalidArgument, naming the field and its value.
absl::Status CheckHostPort(absl::string_view name, absl::string_view address);

// Errors: kInvalidArgument, naming the field and its value.
absl::Status CheckPort(absl::string_view name, int port);

}  // namespace nereus
