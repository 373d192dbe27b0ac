#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Control port of a process: the services given to it, grpc.health.v1 and
// reflection. Stops when destroyed. Thread-safe. gRPC's threads call the
// services.
class ControlServer {
 public:
  // Listens at `host`:`port`; port 0 picks a free port. `services` are not
  // owned and must outlive this. Errors: kUnavailable, the address is in use or
  // not an address of this computer.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const std::string& host, int port,
      const std::vector<grpc::Service*>& services);

  // Stops. Calls under way get a second to end.
  ~ControlServer();

  // Port that it listens at.
  int port() const { return port_; }

  // Sets the answer to health checks of the service "readiness". Starts as not
  // ready. (The answer for the service "" is SERVING until Shutdown.)
  void SetReady(bool ready);

  // Sets the answer to health checks of the service "liveness": true while the
  // process does its work (Pulse). Starts as alive.
  void SetAlive(bool alive);

  // Refuses new calls at once, and ends open calls at `deadline`.
  void Shutdown(absl::Time deadline);

 private:
  // Hides gRPC from the callers of this header.
  struct Impl;
  ControlServer();

  std::unique_ptr<Impl> impl_;  // Server and acceptor.
  int port_ = 0;                // Port of the acceptor.
};

}  // namespace nereus
