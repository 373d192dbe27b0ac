#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/status.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/job_status.h"

namespace nereus {

// Options of a server process.
struct ServerOptions {
  // True for a process that is the job's coordinator and has no shard.
  bool coordinate_only = false;
  // Number of the process's shard. Not used with coordinate_only.
  int shard = 0;

  // Specification of the job. The coordinator uses all of it, and sends the
  // other processes what they need. A server that joins uses only the name.
  JobSpec spec;

  // "host:port" of the coordinator's control port. Empty: this process is the
  // coordinator; then it must be shard 0 or have coordinate_only.
  std::string coordinator_address;

  ProcessAddress address;  // Addresses and ports of this process.
  // True if frames to peers on the same host may go through shared memory.
  bool shared_memory = true;
  // Name of the host, which the coordinator gets (HostClaim::node). Empty:
  // none.
  std::string node;

  // Folder for checkpoints, which all servers share. Empty: no checkpoints.
  std::string checkpoint_dir;

  // Time for which a round must have waited to be reported as a stall.
  absl::Duration stall_threshold = absl::Seconds(5);

  // Checkpoint to start from: a round, or "latest". With "latest" and no
  // checkpoint, starts a new job. Empty: starts a new job. Has no effect if the
  // state file has a running job.
  std::string restore;
  // SQLite file with the coordinator's state, from which a coordinator that is
  // started again goes on. Empty: nothing is saved, so the job ends when its
  // coordinator ends.
  std::string state_file;
  // True: if the job in the state file is over, this process tells its members,
  // and ends. False: it then begins a new job.
  bool once = false;

  // Longest time to look for the coordinator, at the start and whenever the
  // session to it breaks. Also the longest time to connect to the peers of a
  // new epoch.
  absl::Duration connect_timeout = absl::Seconds(60);

  // Returns OK, or kInvalidArgument with the name of the field.
  absl::Status Validate() const;
};

// A server process: one shard, the job's coordinator, or both. Listens while
// this object exists. If the coordinator has counted the process as dead,
// AwaitEnd joins the job again. Thread-safe, but one thread at a time may call
// AwaitEnd.
class Server {
 public:
  // Listens. If the process has a shard, it then joins the job in the
  // background. Errors: kInvalidArgument, bad options, or too few file
  // descriptors; kFailedPrecondition, options that contradict the state or the
  // checkpoints on disk; kUnavailable, a port is in use; those of the
  // checkpoint folder, and of CoordinatorHost::Start.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);

  // Ends all connections and calls, whatever the state of the job.
  virtual ~Server() = default;

  // Ports at which this process listens. data_port() is 0 with coordinate_only.
  virtual int control_port() const = 0;
  virtual int data_port() const = 0;

  // Blocks until the job is over for this process. Returns OK if the job is
  // finished. Errors: those of OutcomeOf; kUnavailable,
  // the coordinator is gone, or cannot save its state. Any other error says why
  // this shard could not join or not go on.
  virtual absl::Status AwaitEnd() = 0;

  // Lets this process leave the job: AwaitEnd returns OK soon. A shard first
  // waits until other servers have its values (`--backup=1`), or the job's last
  // checkpoint is made, for kLeaveTimeout at most. A coordinator can leave
  // nothing: AwaitEnd returns at once. `--state` has what the next one needs.
  virtual void Leave() = 0;
  // Longest time from Leave to the end of AwaitEnd.
  static constexpr absl::Duration kLeaveTimeout = absl::Seconds(9);
  // True if AwaitEnd has returned because this process leaves a job that is not
  // over.
  virtual bool has_left_early() const = 0;

  // True if this process is the coordinator of a finished job that has a folder
  // for checkpoints, and no checkpoint has the job's last step.
  virtual bool lacks_last_checkpoint() const = 0;

  // Returns the status of the job now, if this process is its coordinator.
  virtual std::optional<JobStatus> Status() const = 0;
};

}  // namespace nereus
