#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/job_status.h"
#include "server/coordinator/coordinator.h"
#include "server/process/job_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

// Files that a coordinator writes. Shared with threads that wait for a disk
// (DiskThread).
struct CoordinatorDisk {
  std::shared_ptr<Storage> checkpoints;  // Null: no checkpoints are made.
  std::shared_ptr<JobStore> jobs;        // Null: no state is saved.
  int checkpoints_kept = 3;  // Number of complete checkpoints to keep.
};

// Drives a Coordinator: hands it the messages of the members' sessions, the
// calls of the Admin service and the time, and carries out its actions. Saves
// each state before any member hears of it (SaveFirst). Thread-safe. Any call
// may block until a lock is free, which no thread holds while it waits for a
// disk. Only the Await functions and the destructor wait for more.
class CoordinatorService {
 public:
  // Goes on with the `saved` state, or begins a new job if it is absent.
  CoordinatorService(const CoordinatorOptions& options,
                     std::optional<CoordinatorState> saved,
                     const CoordinatorDisk& disk);
  // Finishes the checkpoints that have all parts on disk, for a lease at most.
  // REQUIRES: the control server that serves services() was shut down.
  ~CoordinatorService();

  // Returns the state of the job, for the metrics and the page.
  JobStatus Status() const;

  // Returns services for the control server. They live as long as this.
  std::vector<grpc::Service*> services();

  // Ends all sessions, refuses new sessions, and stops the ticks of the clock.
  // After this, the control server can shut down.
  void EndSessions();

  // Blocks until the job is over. Returns OK if the job is finished. Errors:
  // those of OutcomeOf; kCancelled, Interrupt was called; kUnavailable, saves
  // of the job's state have failed for longer than a lease, or one has not
  // ended within six leases. After kUnavailable this process must end: a
  // coordinator that is started in its place goes on from the last saved state.
  absl::Status AwaitEnd();
  // Makes AwaitEnd return now.
  void Interrupt();

  // How far the job is from its end.
  enum class Progress {
    kGoesOn,
    kEnding,  // All workers have left; the last checkpoint is being made.
    kOver,    // The job is over, and this is saved.
  };
  Progress progress() const;

  // Sets a function that is called once, when AwaitEnd would return
  // kUnavailable. The function runs on a thread of this object, under its lock,
  // so it must not call this object. REQUIRES: no control server serves
  // services() yet.
  void set_on_failure(std::function<void(const absl::Status&)> on_failure);

  // Waits, for `timeout` at most, until no member has a session, every member
  // has heard that the job is over or is gone, and no silent process may still
  // ask (Coordinator::everyone_knows). If the job is not over, waits until no
  // member is left.
  void AwaitMembersKnow(absl::Duration timeout);

  // True if the job is finished and has a folder for checkpoints, but no
  // checkpoint of its last step.
  bool lacks_last_checkpoint() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace nereus
