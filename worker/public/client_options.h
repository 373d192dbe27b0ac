#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/compute/optimizer.h"
#include "common/protocol/setting.h"

namespace nereus {

// Options for Client::Connect. Every field but `coordinator_address` has a
// working default.
struct ClientOptions {
  // "host:port" of the coordinator, which is the control port of shard 0.
  // Required.
  std::string coordinator_address;

  // Name of the job to join. A coordinator serves one job and refuses workers
  // of another.
  std::string job = "default";

  // Name of this worker: messages call it "worker NAME". No two live workers of
  // a job may have the same name; a process with the name of a dead worker
  // takes its place. At most 256 printable characters without spaces. Empty:
  // "host:pid", and "host:pid.2" for the second client of a process.
  std::string name;

  // Place where the caller takes the job's optimizer to run. Connect fails if
  // it runs elsewhere. With kServer, the job updates the parameters. With
  // kWorker, the caller does, with the mean gradients (Client::Mean). Absent:
  // the caller follows JobTraits::updates_parameters.
  std::optional<OptimizerPlace> optimizer = OptimizerPlace::kServer;

  // Values that must be equal on all workers of the job, each with a name that
  // users know: {"--batch", "32"}. Connect fails with the name and both values
  // where another worker's differ. At most kSettingsMax.
  std::vector<Setting> settings;

  // Address that this process listens at, and that its peers connect to.
  // Between machines, an address that the others can reach.
  std::string host = "127.0.0.1";

  // Ports at `host`: control (health checks) and data (other workers). 0 takes
  // a free port.
  int control_port = 0;
  int data_port = 0;

  // True if frames to processes on the same host may go through shared memory.
  // Both processes must allow it.
  bool shared_memory = true;

  // With `optimizer=worker`: true if mean gradients replace the gradients that
  // were pushed. Otherwise the mean of a layer on a ring stays in the client's
  // memory, which saves a copy; Client::Mean returns it.
  bool means_in_place = true;

  // Longest time to look for the coordinator and for peers, with retries, and
  // to go on without a coordinator that was there.
  absl::Duration connect_timeout = absl::Seconds(60);

  // Longest time of one Wait. Then it fails with what is missing. A dead peer
  // is noticed long before; this is for a peer that lives and stands still.
  absl::Duration round_timeout = absl::Minutes(10);

  // Time after which the coordinator is told of a round that waits for a
  // member.
  absl::Duration stall_threshold = absl::Seconds(5);

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

}  // namespace nereus
