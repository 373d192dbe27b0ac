#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Looks up the IP addresses of hosts on a thread of its own, since name servers
// can take seconds to answer. The thread starts with the first Ask.
// Thread-safe.
class Resolver {
 public:
  // `found` is called on the resolver's thread when Take has something to
  // return. `found` must not call the Resolver. It is not called after the
  // destructor has returned. The destructor does not wait for name servers.
  explicit Resolver(std::function<void()> found);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Asks for the addresses of "host:port".
  void Ask(const std::string& address);

  struct Answer {
    std::string address;                               // Argument of Ask.
    absl::StatusOr<std::vector<SocketAddress>> found;  // Errors: as Resolve.
  };
  // Returns the answers that have arrived since the last call.
  std::vector<Answer> Take();

 private:
  struct State;
  // Owned by this and by the thread, which can run on after the destructor.
  const std::shared_ptr<State> state_;
};

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
