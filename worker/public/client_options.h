#ifndef NEREUS_WORKER_PUBLIC_CLIENT_OPTIONS_H_
#define NEREUS_WORKER_PUBLIC_CLIENT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/compute/optimizer.h"
#include "common/protocol/setting.h"

namespace nereus {

class FactorMultiplier;  // common/driver/factor_multiplier.h

// Options for Client::Connect. Every field has a working default but
// `coordinator_address`.
struct ClientOptions {
  // "host:port" of the coordinator, which is the control port of shard 0.
  // Required.
  std::string coordinator_address;

  // The job to join. A coordinator serves one job and refuses workers of
  // another.
  std::string job = "default";

  // What all messages of the job call this worker: "worker NAME". No two live
  // workers of a job may share a name; a process with the name of a dead worker
  // takes its place. At most 256 printable characters without spaces. Empty:
  // "host:pid", and "host:pid.2" for the second client of a process.
  std::string name;

  // Where the caller takes the job's optimizer to run. Connect fails if it runs
  // elsewhere. With kServer, the job updates the parameters. With kWorker, the
  // caller does, with the mean gradients (Client::Mean). Absent: the caller
  // does as Client::updates_parameters says.
  std::optional<OptimizerPlace> optimizer = OptimizerPlace::kServer;

  // Values that must be the same on all workers of the job, each with a name
  // that users know: {"--batch", "32"}. Connect fails with the name and both
  // values where another worker's differ. At most kSettingsMax.
  std::vector<Setting> settings;

  // Address that this process listens at and that its peers are told to use.
  // Between machines, one that the others can reach.
  std::string host = "127.0.0.1";

  // Ports at `host`: control (health checks) and data (other workers). 0 picks
  // a free one; nothing else listens.
  int control_port = 0;
  int data_port = 0;

  // Whether gradients go to processes on the same host through
  // memory that both have, where those are willing, too.
  bool shared_memory = true;

  // With `optimizer=worker`: whether mean gradients replace those that were
  // pushed. If not, a layer on a ring leaves its mean where it was made, which
  // saves a copy; Client::Mean says where.
  bool means_in_place = true;

  // Called when a round of a layer is done, before a Wait for it returns, or
  // its parameters were `fetched` in Connect or BeginStep, before that returns;
  // on whichever thread that happens: it must neither wait nor call the client.
  // May be empty.
  std::function<void(int layer, int64_t step, bool fetched)> done = nullptr;

  // What multiplies the factors of all workers; null: the CPU.
  std::shared_ptr<FactorMultiplier> multiplier = nullptr;

  // How long to look for the coordinator and the peers, retrying with backoff,
  // and how long to go on without a coordinator that was there.
  absl::Duration connect_timeout = absl::Seconds(60);

  // Longest time one Wait may take before it fails, naming what is missing. A
  // peer that is dead is noticed long before; this is for one that lives and
  // stands still.
  absl::Duration round_timeout = absl::Minutes(10);

  // How long a round may wait for somebody before the coordinator says so.
  absl::Duration stall_threshold = absl::Seconds(5);

  // OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;
};

}  // namespace nereus

#endif  // NEREUS_WORKER_PUBLIC_CLIENT_OPTIONS_H_
