#include "common/base/address.h"

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace nereus {

std::string JoinHostPort(const std::string& host, int port) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && host[0] != '[';
  return bare_ipv6 ? absl::StrCat("[", host, "]:", port)
                   : absl::StrCat(host, ":", port);
}

// Members tell each other `host`, so it must mean the same computer to all.
absl::Status CheckHost(const std::string& host) {
  if (host.empty()) return InvalidArgumentError("host is empty");
  for (const absl::string_view wildcard : {"0.0.0.0", "::", "[::]", "*"}) {
    if (host != wildcard) continue;
    return InvalidArgumentError(
        "host is ", host,
        ", which peers cannot connect to: give the address at "
        "which they reach this machine");
  }
  return absl::OkStatus();
}

absl::Status ProcessAddress::Validate() const {
  NEREUS_TRY(CheckHost(host));
  NEREUS_TRY(CheckPort("control_port", control_port));
  NEREUS_TRY(CheckPort("data_port", data_port));
  NEREUS_TRY(CheckPort("http_port", http_port));
  if (http_port != 0 && (http_port == control_port || http_port == data_port)) {
    return InvalidArgumentError("http_port is ", http_port,
                                ", which is another port of the process, too");
  }
  return absl::OkStatus();
}

absl::Status CheckHostPort(absl::string_view name, absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  int port = 0;
  // CheckHostPort refuses an IPv6 address without brackets, because the end of
  // the address looks like a port.
  const bool is_bare_ipv6 =
      absl::StrContains(host, ':') &&
      !(absl::StartsWith(host, "[") && absl::EndsWith(host, "]"));
  const bool is_valid =
      colon != absl::string_view::npos && !host.empty() && !is_bare_ipv6 &&
      !absl::StrContains(host, '/') &&
      absl::c_all_of(host, [](char c) { return c > ' ' && c <= '~'; }) &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
      port <= 65535;
  if (is_valid) return absl::OkStatus();
  return InvalidArgumentError(
      name, " is \"", absl::CHexEscape(address.substr(0, 200)),
      "\", must be HOST:PORT, as 10.0.0.1:7000 or [::1]:7000");
}

absl::Status CheckPort(absl::string_view name, int port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", port, ", must be in [0, 65535]");
}

}  // namespace nereus
