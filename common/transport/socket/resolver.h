#pragma once

#include <functional>
#include <memory>
#include <string>
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

}  // namespace nereus
