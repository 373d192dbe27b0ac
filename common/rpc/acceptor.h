#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/socket.h"
#include "common/base/status.h"

namespace nereus {

// Acceptor of a control port's connections, on a thread of its own. gRPC 1.51
// stops accepting for good once the process is out of file descriptors
// (CVE-2023-4785): the coordinator would live on and answer no member. This
// acceptor waits until descriptors are free again.
//
// Bounded: a connection is closed at once if it would leave fewer than kReserve
// descriptors for the process's own files. Thread-safe.
class Acceptor {
 public:
  // Descriptors that connections may not use.
  static constexpr int kReserve = 32;

  // Listens at `host`:`port`; port 0 picks a free port. Hands each connection
  // to `accepted`, on the acceptor's thread. `accepted` must not wait. Errors:
  // kUnavailable, with the address and the reason.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      const std::string& host, int port,
      std::function<void(Descriptor)> accepted);

  // Stops. `accepted` is not called afterwards.
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
