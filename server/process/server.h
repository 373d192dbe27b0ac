#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/job_spec.h"

namespace nereus {

struct ServerOptions {
  // Which shard this is. With `coordinate_only` none: the process is the job's
  // coordinator alone.
  bool coordinate_only = false;
  int shard = 0;

  // The job. Counts in the coordinator's process alone, but for its name: all
  // others are told.
  JobSpec spec;

  // "host:port" of the coordinator's control port. Shard 0 without it
  // coordinates.
  std::string coordinator_address;

  // Where to listen and what to tell the others; ports 0 pick free ones.
  std::string host = "127.0.0.1";
  int control_port = 0;
  int data_port = 0;
  bool shared_memory = true;  // Between processes of one host.

  // A folder that all servers share; empty: there are no checkpoints.
  std::string checkpoint_dir;

  // How long a round may wait for somebody before it is said.
  absl::Duration stall_threshold = absl::Seconds(5);

  // "latest", which may be none, or a round: the checkpoint to go on from.
  std::string restore;
  // A SQLite file in which the coordinator finds its job when it is started
  // anew; empty: it does not.
  std::string state_file;

  // How long to look for the coordinator, and to do without one; retrying with
  // backoff.
  absl::Duration connect_timeout = absl::Seconds(60);

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

// A server process: one shard, the job's coordinator, or both.
// Listens while it exists. Thread-safe.
class Server {
 public:
  // Listens, and joins the job in the background.
  // Errors: kInvalidArgument, bad options; kUnavailable, a port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options);

  // Ends connections and calls, and stops.
  virtual ~Server() = default;

  virtual int control_port() const = 0;
  virtual int data_port() const = 0;

  // Blocks until the job is over: OK when every worker has left politely.
  // Errors: kAborted, the job failed, with the reason; kUnavailable, the
  // coordinator is gone; else why this shard could not join.
  virtual absl::Status AwaitEnd() = 0;

  // Whether this process coordinates a job that is finished, but has not saved
  // what its last step came to in its folder for checkpoints.
  virtual bool lacks_last_checkpoint() const = 0;
};

}  // namespace nereus
