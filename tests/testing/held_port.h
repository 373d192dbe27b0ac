#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/socket.h"

namespace nereus {

// A port of 127.0.0.1 at which nothing listens. While this object lives, the
// kernel gives the port to no process that asks for a free port. The port of a
// server that has ended has no such protection. A server of Nereus can still
// listen at this port, because both sockets set SO_REUSEADDR.
class HeldPort {
 public:
  HeldPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    NEREUS_CHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                            sizeof(on)) == 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    NEREUS_CHECK(bind(socket_.get(), raw, length) == 0);
    NEREUS_CHECK(getsockname(socket_.get(), raw, &length) == 0);
    port_ = ntohs(address.sin_port);
  }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  const Descriptor socket_;  // Bound, and never listens.
  int port_ = 0;
};

}  // namespace nereus
