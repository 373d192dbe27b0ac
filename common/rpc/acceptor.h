#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Acceptor of a control port's connections, on a thread of its own. The
// acceptor of gRPC 1.51 stops for good once the process has no file descriptors
// left (CVE-2023-4785): the coordinator would go on running, but no member
// could connect to it any more. This acceptor tries again until a descriptor is
// free.
//
// Bounded: closes a new connection at once if it would leave fewer than
// kReserve free descriptors, which the process needs for its own files.
// Thread-safe.
class Acceptor {
 public:
  // Number of descriptors that connections may not use.
  static constexpr int kReserve = 32;

  // Listens at `host`:`port`; port 0 picks a free port. Hands each connection
  // to `accepted`, on the acceptor's thread. `accepted` must not block, because
  // later connections would wait for it. Errors: kUnavailable, with the address
  // and the reason.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      const std::string& host, int port,
      std::function<void(Descriptor)> accepted);

  // Stops listening. `accepted` is not called afterwards.
  ~Acceptor();

  // Port that it listens at.
  int port() const { return listener_.port; }

 private:
  Acceptor(Listener listener, Descriptor stop,
           std::function<void(Descriptor)> accepted);
  // Body of the thread.
  void Run();

  const Listener listener_;  // Listening socket.
  // An eventfd, readable once the thread is to stop.
  const Descriptor stop_;
  // Receiver of connections.
  const std::function<void(Descriptor)> accepted_;
  std::thread thread_;  // Last member: it uses all others.
};

}  // namespace nereus
