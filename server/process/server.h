#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job_spec.h"

namespace nereus {

struct ServerOptions {
  // True for a process that is the job's coordinator and no shard.
  bool coordinate_only = false;
  int shard = 0;  // Number of the process's shard.

  // The job. Read by the coordinator, which tells the others; they read only
  // the name.
  JobSpec spec;

  // "host:port" of the coordinator's control port. If it is empty, this process
  // coordinates: shard 0, or one with coordinate_only.
  std::string coordinator_address;

  // Address to listen at, and at which peers connect. Port 0 picks a free one.
  std::string host = "127.0.0.1";
  int control_port = 0;
  int data_port = 0;
  bool shared_memory = true;  // Use shared memory to peers of the same host.
  // Name of the host, for the coordinator (HostClaim::node). Empty: none.
  std::string node;

  // Folder for checkpoints, which all servers share. Empty: no checkpoints.
  std::string checkpoint_dir;

  // Time for which a round must have waited to be reported as a stall.
  absl::Duration stall_threshold = absl::Seconds(5);

  // Checkpoint to start from: a round, or "latest", which starts a new job if
  // there is no checkpoint. Empty: starts a new job.
  std::string restore;
  // SQLite file with the coordinator's state, from which a coordinator that is
  // started again goes on. Empty: the job ends with its coordinator.
  std::string state_file;

  // Longest time to look for the coordinator, at the start and whenever it is
  // lost.
  absl::Duration connect_timeout = absl::Seconds(60);

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// A server process: one shard, the job's coordinator, or both. Listens while it
// exists; joins again by itself if it was counted as dead. Thread-safe.
class Server {
 public:
  // Listens, and joins the job in the background. Errors: kInvalidArgument, bad
  // options; kFailedPrecondition, options that contradict the state or the
  // checkpoints on disk; kUnavailable, a port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);

  // Ends all connections and calls, whatever the state of the job.
  virtual ~Server() = default;

  // Ports at which this process listens. data_port() is 0 with coordinate_only.
  virtual int control_port() const = 0;
  virtual int data_port() const = 0;

  // Blocks until the job is over: OK when every worker has left. Errors:
  // kAborted, the job failed, with the reason; kUnavailable, the coordinator is
  // gone, or cannot save its state; others say why this shard could not join.
  virtual absl::Status AwaitEnd() = 0;

  // True if this process coordinates a job that is finished, and the job's last
  // step is in no checkpoint although it has a folder for them.
  virtual bool lacks_last_checkpoint() const = 0;
};

}  // namespace nereus
