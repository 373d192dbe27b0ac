#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/checkpoint/storage.h"
#include "server/coordinator/coordinator.h"
#include "server/process/job_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Where a coordinator keeps things; neither is owned, both may be null.
struct CoordinatorDisk {
  Storage* checkpoints = nullptr;
  JobStore* jobs = nullptr;
  int checkpoints_kept = 3;
};

// Drives a Coordinator: gives it the sessions of the Coordinator service,
// Admin's questions and the time, and carries out what it decides. Thread-safe.
class CoordinatorService {
 public:
  // Goes on with `saved`, if there is something.
  CoordinatorService(const CoordinatorOptions& options,
                     std::optional<CoordinatorState> saved,
                     const CoordinatorDisk& disk);
  // The server that serves services() must have been shut down.
  ~CoordinatorService();

  // For the control server; valid as long as this is.
  std::vector<grpc::Service*> services();

  // Ends all sessions, so that the control server can shut down.
  void EndSessions();

  // Blocks until the job is over: OK if every worker has left politely. Errors:
  // kAborted, it failed, with the reason; kUnavailable, its state could not be
  // saved for longer than a lease: this process must go, and members will find
  // the coordinator that is started again as of the last state that was saved.
  absl::Status AwaitEnd();

  // Called once on a thread of this object's when AwaitEnd would return
  // kUnavailable. To be set before services() are served.
  void set_on_failure(std::function<void(const absl::Status&)> on_failure);

  // Waits until every member's session is over, once the job is; `timeout` at
  // most.
  void AwaitEveryoneKnows(absl::Duration timeout);

  // Of a job that is over: Coordinator::lacks_last_checkpoint.
  bool lacks_last_checkpoint() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
