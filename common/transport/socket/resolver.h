#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/socket.h"

namespace nereus {

// Looks names up on a thread of its own, which starts with the first one: name
// servers may take seconds. Thread-safe.
class Resolver {
 public:
  // `found` is called on that thread whenever there is something to Take, until
  // the destructor returns; the destructor does not wait for name servers.
  explicit Resolver(std::function<void()> found);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Asks for the addresses of "host:port".
  void Ask(const std::string& address);

  struct Answer {
    std::string address;                               // As asked.
    absl::StatusOr<std::vector<SocketAddress>> found;  // Errors: as Resolve.
  };
  std::vector<Answer> Take();

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace nereus
