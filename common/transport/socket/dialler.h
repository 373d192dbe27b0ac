#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/transport/socket/resolver.h"

namespace nereus {

// Begins TCP connections to "host:port". If the host is a name with several IP
// addresses, each call of Dial dials the next one.
//
// Not thread-safe; never waits, neither for name servers nor for the peer.
class Dialler {
 public:
  // Outcome of Dial.
  struct Dialled {
    // Socket that is connecting. Not valid if a name server was asked instead;
    // Take returns the answer.
    Descriptor socket;
    bool has_more_addresses = false;
  };

  // Answer of the name servers about one "host:port".
  struct LookedUp {
    std::string address;
    absl::Status result;
  };

  // `looked_up` is called on another thread when Take has something to return.
  // `looked_up` must not call the Dialler. After the destructor has returned,
  // no call of `looked_up` begins or runs.
  explicit Dialler(std::function<void()> looked_up)
      : resolver_(std::move(looked_up)) {}

  // Begins to connect to the next IP address of `address`. Errors:
  // kUnavailable.
  absl::StatusOr<Dialled> Dial(const std::string& address);

  // Forgets the answers of name servers about `address`, so that the next Dial
  // asks again.
  void Forget(const std::string& address) { found_.erase(address); }

  // Returns the answers that have arrived since the last call.
  std::vector<LookedUp> Take();

 private:
  // IP addresses of each name that have not been dialled yet. No list is empty.
  std::map<std::string, std::vector<SocketAddress>> found_;
  Resolver resolver_;  // Asks name servers.
};

}  // namespace nereus
