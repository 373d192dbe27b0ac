#ifndef NEREUS_SERVER_COORDINATOR_SERVICE_H_
#define NEREUS_SERVER_COORDINATOR_SERVICE_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/coordinator.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Drives a Coordinator: gives it the sessions of the Coordinator service,
// Admin's questions and the time, and carries out what it decides. Thread-safe.
class CoordinatorService {
 public:
  explicit CoordinatorService(const CoordinatorOptions& options);
  // The server that serves services() must have been shut down.
  ~CoordinatorService();

  // For the control server; valid as long as this is.
  std::vector<grpc::Service*> services();

  // Ends all sessions, so that the control server can shut down.
  void EndSessions();

  // Waits until every member's session is over, once the job is; `timeout` at
  // most.
  void AwaitEveryoneKnows(absl::Duration timeout);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus

#endif  // NEREUS_SERVER_COORDINATOR_SERVICE_H_
