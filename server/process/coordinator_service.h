#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/log_repeats.h"
#include "common/checkpoint/storage.h"
#include "common/protocol/job_status.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/process/job_store.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nereus {

class DrainCall;

// Open calls of Admin.Drain. Each waits until its member has left the job, so
// that the caller also hears of a member whose leaving ends the job.
//
// Not thread-safe: the owner holds its lock in each call. The owner must call
// Forget when it gets `cancelled`.
class DrainCalls {
 public:
  // `cancelled` is called if the caller no longer waits. It runs on a thread of
  // gRPC, without the owner's lock, and may come after the call was answered.
  explicit DrainCalls(std::function<void(DrainCall*)> cancelled)
      : cancelled_(std::move(cancelled)) {}

  // Opens a call that waits for `member`. Returns its reactor.
  grpc::ServerUnaryReactor* Open(std::string member);

  // Answers the calls whose member has left, by `has_left`.
  void Answer(const std::function<bool(const std::string&)>& has_left);

  // Ends all calls, and from now on each new call at once, with an error: the
  // process shuts down.
  void EndAll();

  // Ends a call, if it is still open.
  void Forget(DrainCall* call);

 private:
  const std::function<void(DrainCall*)> cancelled_;
  std::vector<DrainCall*> calls_;  // Each deletes itself after its answer.
  bool stopping_ = false;          // EndAll was called.
};

// Log of the coordinator's decisions. Keeps the last kStatusEventsMax lines for
// the status.
class JobLog {
 public:
  // Writes a line. Leaves out refusals that say the same again and again.
  void Write(const Announce& line);
  // Writes a line if the job's state has changed.
  void WriteState(JobState state, const std::string& reason);

  // The last lines, the newest last.
  std::vector<JobStatus::Event> events() const {
    return {events_.begin(), events_.end()};
  }

 private:
  LogRepeats refusals_;                  // Lines about refusals.
  JobState state_ = JobState::kWaiting;  // State in the last line about it.
  std::deque<JobStatus::Event> events_;
};

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

  // Age up to which a status is shown again. Making one takes the lock, and
  // time that grows with the number of layers; so any number of readers costs
  // as much as ten a second.
  static constexpr absl::Duration kStatusAge = absl::Milliseconds(100);
  // Returns the state of the job as of `age` ago or later.
  JobStatus Status(absl::Duration age = kStatusAge) const;

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
