#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// The control port of a process: the services given to it, grpc.health.v1 and
// reflection. Stops when destroyed. Thread-safe.
class ControlServer {
 public:
  // Listens at `host`:`port`, 0 picks a free one. `services` are not owned and
  // must outlive this. Errors: kUnavailable, the address is in use or not this
  // machine's.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const std::string& host, int port,
      const std::vector<grpc::Service*>& services);

  ~ControlServer();

  int port() const { return port_; }

  // What health checks of the service "readiness" hear; of "" it is always
  // SERVING. Starts as not ready.
  void SetReady(bool ready);

  // What health checks of the service "liveness" hear: whether the process does
  // its work (Pulse). Starts as alive.
  void SetAlive(bool alive);

  // Ends open calls at `deadline`, new ones at once.
  void Shutdown(absl::Time deadline);

 private:
  struct Impl;
  ControlServer();

  std::unique_ptr<Impl> impl_;
  int port_ = 0;
};

}  // namespace nereus
