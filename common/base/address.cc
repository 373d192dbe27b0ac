#include "common/base/address.h"

#include "absl/strings/str_cat.h"

namespace nereus {

std::string JoinHostPort(const std::string& host, int port) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && host[0] != '[';
  return bare_ipv6 ? absl::StrCat("[", host, "]:", port)
                   : absl::StrCat(host, ":", port);
}

absl::Status CheckHost(const std::string& host) {
  if (host.empty()) return absl::InvalidArgumentError("host is empty");
  for (const absl::string_view wildcard : {"0.0.0.0", "::", "[::]", "*"}) {
    if (host != wildcard) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("host is ", host,
                     ", which peers cannot connect to: give the address at "
                     "which they reach this machine"));
  }
  return absl::OkStatus();
}

absl::Status CheckPort(absl::string_view name, int port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", port, ", must be in [0, 65535]"));
}

}  // namespace nereus
