#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nereus {

// Owns a file descriptor: a TCP socket, or what waits for some.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor away: the caller closes it.
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

// A numeric address and port, of IPv4 or IPv6.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  // "10.0.0.1:7700", "[::1]:7700".
  std::string ToString() const;
};

// "host:port" or "[host]:port". Errors: kInvalidArgument, another form, or a
// port out of range.
absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(
    absl::string_view address);

// All addresses that a name has; asks name servers unless it is numeric, and
// may take seconds. Errors: kInvalidArgument, not "host:port"; kUnavailable,
// there is no such name now.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address,
                                                   bool numeric_only);

// Listens, without waiting in accept, at one address of `host`; `port` 0: one
// that is free. Errors: kUnavailable, with "host:port".
struct Listener {
  Descriptor socket;
  int port = 0;
};
absl::StatusOr<Listener> Listen(const std::string& host, int port);

// Accepts one connection; not valid() if there is none. What goes wrong with
// one that waits is its peer's to notice, unless this process has no more
// descriptors.
struct Accepted {
  Descriptor socket;
  bool exhausted = false;
  std::string address;
};
Accepted Accept(const Descriptor& listener);

// Begins to connect: the socket is writable when that is over, and
// ConnectResult says how. Errors: kUnavailable.
absl::StatusOr<Descriptor> BeginConnect(const SocketAddress& address);
absl::Status ConnectResult(const Descriptor& socket);

// Whether the other end has this end's address: then it is on this host.
bool IsOnSameHost(const Descriptor& socket);

// Closing it drops what the kernel has not sent, and the peer hears that it was
// reset.
void AbortOnClose(const Descriptor& socket);

// kUnavailable: "the connection was lost: " and what errno says.
absl::Status LostConnection(int error);

}  // namespace nereus
