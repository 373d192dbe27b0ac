#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/descriptor.h"
#include "common/base/status.h"

namespace nereus {

// Numeric address and port, IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage = {};  // Address in the form of the system calls.
  socklen_t length = 0;           // Number of bytes of `storage` in use.

  // Returns "10.0.0.1:7700", "[::1]:7700".
  std::string ToString() const;
};

// Returns host and port of "host:port" or "[host]:port", without the brackets.
// Does not check the host; CheckHostPort does. Errors: kInvalidArgument,
// `address` has no host, or no port from 1 to 65535.
absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(
    absl::string_view address);

// Returns the addresses to which `address`, "host:port", resolves. With
// `numeric_only`, the host must be a number like 10.0.0.1, and the call is
// quick. Otherwise the call may ask name servers and take seconds, so a thread
// that drives a machine must not make it. Errors: kInvalidArgument, `address`
// is not "host:port"; kUnavailable, the host is not numeric or is not known
// now.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address,
                                                   bool numeric_only);

// Socket that accepts connections.
struct Listener {
  Descriptor socket;  // Not blocking.
  int port = 0;       // Port at which the socket listens.
};
// Listens at the first address of `host` at which that is possible. With `port`
// 0, the system picks a free port. Asks name servers if `host` is a name.
// Errors: kUnavailable, whose message has "host:port".
absl::StatusOr<Listener> Listen(const std::string& host, int port);

// Outcome of accepting a connection.
struct Accepted {
  Descriptor socket;  // The connection; not valid: none was accepted.
  // True if none was accepted because the process or the system is short of
  // descriptors or memory.
  bool exhausted = false;
  std::string address;  // Address of the peer, for messages.
};
// Accepts one connection, without waiting. Returns no connection if none is
// there, or if the connection broke before this call.
Accepted Accept(const Descriptor& listener);

// Begins to connect to `address`, without waiting. The socket becomes writable
// when the connection is made or has failed; ConnectResult then says which.
// Errors: kUnavailable.
absl::StatusOr<Descriptor> BeginConnect(const SocketAddress& address);
// Returns OK if the connection of BeginConnect is made. Errors: kUnavailable,
// it has failed. REQUIRES: the socket is writable.
absl::Status ConnectResult(const Descriptor& socket);

// Returns the time, since the connection was made, in which a TCP socket could
// not send because the peer's process read too slowly. Also zero if the kernel
// does not tell this time.
absl::Duration PeerLimitedTime(const Descriptor& socket);

// True if both ends of the connection have the same IP address: then they are
// on one host.
bool IsOnSameHost(const Descriptor& socket);

// Sets the socket up so that a later close drops the bytes that the kernel has
// not sent, and the peer sees a reset.
void AbortOnClose(const Descriptor& socket);

// Returns kUnavailable: "the connection was lost: " and the text of `error`, a
// value of errno.
absl::Status LostConnection(int error);

}  // namespace nereus
