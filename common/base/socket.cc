#include "common/base/socket.h"

#include <linux/tcp.h>  // Not netinet/tcp.h, whose tcp_info lacks busy times.
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/address.h"
#include "common/base/status.h"

// Sockets without waiting. Listen, Accept, BeginConnect and ConnectResult are
// thin wrappers of system calls that also set the options of a data connection
// (TuneConnection, AvoidBbr, RestoreBbrIfFar). Only Resolve and Listen may
// wait, for a name server (Lookup).

namespace nereus {
namespace {

// Limit of the bytes of a connection that wait unsent in the kernel. A frame of
// higher priority cannot overtake these bytes, so they must be few: with 512
// KiB they wait for 13 ms if three connections share 1 Gbit/s. They are enough
// to keep a fast network busy until this process writes again.
constexpr int kUnsentBytesMax = 128 * 1024;

// Keepalive: the kernel asks a peer for a sign of life when the peer has been
// silent for kKeepaliveIdle seconds, and then every kKeepaliveInterval seconds.
// The kernel ends the connection after kKeepaliveProbes questions without an
// answer. A computer that loses its power closes no socket: without keepalive,
// its connections would seem to live for ever. TCP_USER_TIMEOUT is not used,
// because it would also end the connection to a peer that lives but does not
// read for a while.
constexpr int kKeepaliveIdle = 30;
constexpr int kKeepaliveInterval = 5;
constexpr int kKeepaliveProbes = 4;

// Congestion control in place of BBR, and the longest round trip for which it
// is used. BBR is made for links that are long and lose packets. Within a
// cluster it costs: on loopback an all-reduce of 64 MiB by four processes took
// 1.4 times as long as with CUBIC, and a third more CPU; and flows that share a
// link finish far apart, so servers filled 86 % of 1 Gbit/s, and 99 % with
// CUBIC (docs/decisions/data_path.md).
constexpr absl::string_view kBbr = "bbr";
constexpr absl::string_view kInPlaceOfBbr = "cubic";
constexpr absl::Duration kShortRoundTrip = absl::Milliseconds(5);

// Limit of the connections that wait in the kernel until they are accepted.
constexpr int kBacklog = 512;

std::string ErrnoText(int error) { return std::strerror(error); }

// Sets one option. A failure is ignored: the socket works, only less well.
void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// Sets the options of a data connection.
void TuneConnection(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytesMax);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdle);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveInterval);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
}

// Returns what the kernel knows of a connection; all zero if it tells nothing.
// An older kernel fills fewer fields.
tcp_info InfoOf(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return info;
}

// Returns the congestion control of a socket; "" if the kernel does not tell.
std::string CongestionControl(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX of the kernel.
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) {
    return "";
  }
  return name;
}

// Sets the congestion control of a socket, unless the kernel forbids it.
void SetCongestionControl(int fd, absl::string_view name) {
  (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size());
}

// Replaces BBR on a socket that is not connected yet. A socket that has begun
// to send with BBR goes on to send by a timer when BBR is replaced.
void AvoidBbr(int fd) {
  if (absl::StartsWith(CongestionControl(fd), kBbr)) {
    SetCongestionControl(fd, kInPlaceOfBbr);
  }
}

// Sets BBR again, if it is the system's default, on a connection whose
// handshake took longer than kShortRoundTrip.
void RestoreBbrIfFar(int fd) {
  if (absl::Microseconds(InfoOf(fd).tcpi_rtt) <= kShortRoundTrip) return;
  const Descriptor fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string own = CongestionControl(fresh.get());
  if (absl::StartsWith(own, kBbr)) SetCongestionControl(fd, own);
}

// Asks the system for the addresses of a host.
absl::StatusOr<std::vector<SocketAddress>> Lookup(const std::string& host,
                                                  const std::string& port,
                                                  int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return UnavailableError(
        host, ": ",
        error == EAI_SYSTEM ? ErrnoText(errno) : gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found,
                                                             freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress address;
    if (each->ai_addrlen > sizeof(address.storage)) continue;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

// Listens at one address.
absl::StatusOr<Listener> ListenAt(const SocketAddress& address) {
  Descriptor socket(::socket(address.storage.ss_family,
                             SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return UnavailableError(ErrnoText(errno));
  // Lets a process that is started again listen at its old port, although
  // connections of the earlier process have only just ended.
  SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  AvoidBbr(socket.get());  // Accepted connections inherit it.
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (bind(socket.get(), name, address.length) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return UnavailableError(ErrnoText(errno));
  }
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &length) !=
      0) {
    return UnavailableError(ErrnoText(errno));
  }
  // The port is at the same place in sockaddr_in and sockaddr_in6.
  const auto* inet = reinterpret_cast<const sockaddr_in*>(&bound);
  return Listener{std::move(socket), ntohs(inet->sin_port)};
}

}  // namespace

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const auto* name = reinterpret_cast<const sockaddr*>(&storage);
  if (getnameinfo(name, length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return storage.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                       : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(
    absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return InvalidArgumentError("\"", address, "\" is not HOST:PORT");
  }
  absl::string_view host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return std::pair(std::string(host), absl::StrCat(port));
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view address,
                                                   bool numeric_only) {
  const auto parts = NEREUS_TRY(SplitHostPort(address));
  return Lookup(parts.first, parts.second,
                numeric_only ? AI_NUMERICHOST : AI_ADDRCONFIG);
}

absl::StatusOr<Listener> Listen(const std::string& host, int port) {
  const auto listener = [&]() -> absl::StatusOr<Listener> {
    const std::vector<SocketAddress> addresses =
        NEREUS_TRY(Lookup(host, absl::StrCat(port), AI_PASSIVE));
    absl::StatusOr<Listener> made = UnavailableError("no address");
    for (const SocketAddress& address : addresses) {
      made = ListenAt(address);
      if (made.ok()) break;
    }
    return made;
  };
  absl::StatusOr<Listener> made = listener();
  if (made.ok()) return made;
  return UnavailableError("cannot listen at ", JoinHostPort(host, port), ": ",
                          made.status().message());
}

Accepted Accept(const Descriptor& listener) {
  SocketAddress from;
  from.length = sizeof(from.storage);
  Accepted accepted;
  accepted.socket = Descriptor(
      accept4(listener.get(), reinterpret_cast<sockaddr*>(&from.storage),
              &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.socket.valid()) {
    // Any other error means that one connection broke, or that none waits.
    accepted.exhausted = errno == EMFILE || errno == ENFILE ||
                         errno == ENOBUFS || errno == ENOMEM;
    return accepted;
  }
  TuneConnection(accepted.socket.get());
  RestoreBbrIfFar(accepted.socket.get());
  accepted.address = from.ToString();
  return accepted;
}

absl::StatusOr<Descriptor> BeginConnect(const SocketAddress& address) {
  Descriptor socket(::socket(address.storage.ss_family,
                             SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return UnavailableError(ErrnoText(errno));
  TuneConnection(socket.get());
  AvoidBbr(socket.get());
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(socket.get(), name, address.length) != 0 &&
      errno != EINPROGRESS) {
    return UnavailableError(ErrnoText(errno));
  }
  return socket;
}

absl::Status ConnectResult(const Descriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    error = errno;
  }
  if (error != 0) return UnavailableError(ErrnoText(error));
  RestoreBbrIfFar(socket.get());
  return absl::OkStatus();
}

absl::Duration PeerLimitedTime(const Descriptor& socket) {
  return absl::Microseconds(InfoOf(socket.get()).tcpi_rwnd_limited);
}

bool IsOnSameHost(const Descriptor& socket) {
  SocketAddress own;
  SocketAddress other;
  own.length = other.length = sizeof(sockaddr_storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own.storage),
                  &own.length) != 0 ||
      getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other.storage),
                  &other.length) != 0) {
    return false;
  }
  const auto host = [](const SocketAddress& address) {
    std::string text = address.ToString();
    return text.substr(0, text.rfind(':'));
  };
  return host(own) == host(other);
}

void AbortOnClose(const Descriptor& socket) {
  // A linger of zero seconds: close sends a reset.
  const linger now = {1, 0};
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

absl::Status LostConnection(int error) {
  return UnavailableError("the connection was lost: ", ErrnoText(error));
}

}  // namespace nereus
