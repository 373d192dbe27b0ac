#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/socket.h"

namespace nereus {

// Accepts the connections of a control port on a thread of its own. gRPC 1.51
// would stop accepting for good once the process is out of file descriptors
// (CVE-2023-4785): a coordinator that answers nobody, and lives. This one waits
// until there are some again.
//
// Bounded: keeps kReserve descriptors free for what the process itself opens;
// a connection beyond that is closed at once.
class Acceptor {
 public:
  static constexpr int kReserve = 32;

  // Listens at `host`:`port`, 0 picks a free one, and hands each connection to
  // `accepted`, which must not wait. Errors: kUnavailable, with the address and
  // why.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(
      const std::string& host, int port,
      std::function<void(Descriptor)> accepted);

  // Accepts no more; `accepted` is not called afterwards.
  ~Acceptor();

  int port() const { return listener_.port; }

 private:
  Acceptor(Listener listener, Descriptor stop,
           std::function<void(Descriptor)> accepted);
  void Run();

  const Listener listener_;
  const Descriptor stop_;  // An eventfd: readable when it is to stop.
  const std::function<void(Descriptor)> accepted_;
  std::thread thread_;  // Last: uses all of the above.
};

}  // namespace nereus
