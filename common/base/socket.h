#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/descriptor.h"
#include "common/base/status.h"

namespace nereus {

// Numeric address and port, IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage = {};  // Address as the system has it.
  socklen_t length = 0;           // Number of bytes of `storage` in use.

  // Returns "10.0.0.1:7700", "[::1]:7700".
  std::string ToString() const;
};

// Returns host and port of "host:port" or "[host]:port". Errors:
// kInvalidArgument, another form, or a port out of range.
absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(
    absl::string_view address);

// Returns all addresses of "host:port". Unless `numeric_only`, it may ask name
// servers and take seconds, so a driving thread must not call it. Errors:
// kInvalidArgument, not "host:port"; kUnavailable, the name is not known now.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address,
                                                   bool numeric_only);

// Socket that accepts connections.
struct Listener {
  Descriptor socket;  // Not blocking.
  int port = 0;       // Port that it listens at.
};
// Listens at one address of `host`; `port` 0 picks a free port. Asks name
// servers if `host` is a name. Errors: kUnavailable, with "host:port".
absl::StatusOr<Listener> Listen(const std::string& host, int port);

// Outcome of accepting a connection.
struct Accepted {
  Descriptor socket;  // The connection; not valid: there is none.
  // True if the system is short of descriptors or memory.
  bool exhausted = false;
  std::string address;  // Address of the peer, for messages.
};
// Accepts one connection, without waiting. If a connection breaks before it is
// accepted, only its peer notices.
Accepted Accept(const Descriptor& listener);

// Begins to connect, without waiting. The socket becomes writable when the
// attempt is over; then ConnectResult returns its outcome. Errors:
// kUnavailable.
absl::StatusOr<Descriptor> BeginConnect(const SocketAddress& address);
// Returns the outcome of BeginConnect. REQUIRES: the socket is writable.
absl::Status ConnectResult(const Descriptor& socket);

// True if both ends have the same IP address, and so are on one host.
bool IsOnSameHost(const Descriptor& socket);

// Makes closing the socket drop the bytes that the kernel has not sent; the
// peer sees a reset.
void AbortOnClose(const Descriptor& socket);

// Returns kUnavailable: "the connection was lost: " and the text of `error`, a
// value of errno.
absl::Status LostConnection(int error);

}  // namespace nereus
