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

// Control port of a process. Serves the gRPC services that Start gets, health
// checks (grpc.health.v1), and reflection, which tells clients what the
// services are. Stops when destroyed. Thread-safe. gRPC's threads call the
// services.
class ControlServer {
 public:
  // Listens at `host`:`port`; port 0 picks a free port. `services` are not
  // owned and must outlive this. Errors: kUnavailable, the address is in use or
  // not an address of this computer.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const std::string& host, int port,
      const std::vector<grpc::Service*>& services);

  // Stops. Gives calls under way a second to end.
  ~ControlServer();

  // Port at which this listens.
  int port() const { return port_; }

  // Sets the answer to health checks of the service "readiness", which is "not
  // ready" before the first call. (The answer for the service "" is SERVING
  // until Shutdown.)
  void SetReady(bool ready);

  // Sets the answer to health checks of the service "liveness", which is
  // "alive" before the first call. `alive`: false if the driver of this member
  // stands still (Pulse).
  void SetAlive(bool alive);

  // Refuses new calls at once. Waits for calls under way until `deadline`, and
  // then cancels them.
  void Shutdown(absl::Time deadline);

 private:
  // Hides gRPC from the callers of this header.
  struct Impl;
  ControlServer();

  std::unique_ptr<Impl> impl_;  // Server and acceptor.
  int port_ = 0;                // Port of the acceptor.
};

}  // namespace nereus
