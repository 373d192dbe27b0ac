#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/compute/optimizer.h"
#include "common/protocol/setting.h"

namespace nereus {

// Options of a worker that shares its device, a GPU or the cores of its host,
// with other jobs: they take turns, step by step, and one computes while the
// others wait for the network (docs/sharing.md). All workers of a job must have
// the same weight.
struct ShareOptions {
  // Folder of the device, the same for all processes that share it: an absolute
  // path on a local disk or in memory, such as /dev/shm/gpu0, that belongs to
  // the user, with mode 0700; it is made if only its last part is missing.
  // Empty: the worker has the device for itself.
  std::string folder = "";

  // True if the folder belongs to a group, with mode 0770: then the members of
  // the group share the device.
  bool allows_group = false;

  // Share of the job in the device, relative to those of the other jobs: from
  // 0.01 to 100.
  double weight = 1;

  // Time after which the other jobs pass a worker that has the turn and does
  // nothing: at least ten of its usual turns, and at least this long. Positive.
  absl::Duration limit = absl::Seconds(2);

  // Bytes of the device's memory; bytes that this worker keeps there; bytes
  // that it needs besides while it computes a step. A worker waits for its
  // first turn until the bytes that all workers keep and the largest need of
  // a turn fit into the memory together. 0: not known, and not counted.
  int64_t memory_bytes = 0;
  int64_t resident_bytes = 0;
  int64_t turn_bytes = 0;

  // True if the worker trains without turns where the folder cannot be used,
  // with a warning. False: Connect fails, and names the reason.
  bool is_optional = false;
};

// OK if the memory of a device can have so many bytes. Errors:
// kInvalidArgument, with `name` and the number.
absl::Status CheckDeviceBytes(absl::string_view name, int64_t bytes);

// Options for Client::Connect and Client::Join. Every field but
// `coordinator_address` has a working default.
//
// A program that `nereusctl run` starts takes the options from its environment:
//
//   ClientOptions options = NEREUS_TRY(ClientOptions::FromEnvironment());
struct ClientOptions {
  // Address of the coordinator, "host:port": the control port of server 0, or
  // of the coordinator's own process. Required.
  std::string coordinator_address;

  // Name of the job to join. A coordinator serves one job and refuses a worker
  // that names another job.
  std::string job = "default";

  // Name of this worker, which messages call "worker NAME": at most 256
  // printable characters without spaces. Two live workers of a job must not
  // have the same name. A process with the name of a dead worker takes that
  // worker's place. If the name is empty, the client makes one from the
  // computer's name and the process number: "host:pid", and "host:pid.2" for
  // the second client of a process.
  std::string name;

  // Number that the launcher gave this process among the processes that it
  // started together, from 0: at the start of the job the rank of this worker
  // (JobTraits::rank), if all workers have different numbers. Absent: the order
  // of joining decides.
  std::optional<int32_t> rank;

  // Place where the caller expects the job's optimizer to run. kServer: the job
  // updates the parameters. kWorker: the caller updates them from the mean
  // gradients (Client::Mean). Absent: the caller supports both places, and
  // JobTraits::updates_parameters says which one the job uses. Connect fails if
  // the job's optimizer runs in another place than the caller expects. Without
  // this check, a caller that relies on the job could join a job in which no
  // process updates the parameters.
  std::optional<OptimizerPlace> optimizer = OptimizerPlace::kServer;

  // False if the caller runs an optimizer that keeps no state, such as SGD
  // without momentum. If true, the client warns a caller that runs the
  // optimizer and has not bound its state (LayerBinding::state).
  bool optimizer_has_state = true;

  // True if the caller multiplies its loss by StepInfo::loss_scale. If false, a
  // job with --loss-scale=dynamic refuses this worker: the client would divide
  // gradients by a factor by which the caller has not multiplied them.
  bool scales_loss = false;

  // Values that must be equal on all workers of the job, each with a name that
  // users know from the command line, such as {"--batch", "32"}. Connect fails
  // if another worker's value differs; the message has the name and both
  // values. At most kSettingsMax.
  std::vector<Setting> settings;

  // Addresses and ports of this process. The control port answers health
  // checks.
  ProcessAddress address;

  // True if this process allows frames to and from processes on the same host
  // to go through shared memory. They do if both processes allow it.
  bool shared_memory = true;

  // Name of the host that this process runs on, such as the Kubernetes node of
  // its pod: at most 256 printable characters without spaces. Processes that
  // name the same node count as one host if they run on one computer. Empty:
  // processes of one computer and one network namespace count as one host.
  std::string node;

  // True if, in a job with `--optimizer=worker`, the client writes each mean
  // gradient over the pushed gradient. If false, a mean that arises in the
  // client's own memory, for example that of a layer on a ring, stays there,
  // which saves a copy. Client::Mean returns the right memory in both cases.
  bool means_in_place = true;

  // Turns at a device that other jobs use, too.
  ShareOptions share;

  // Longest time for which the client tries to connect to the coordinator or to
  // another member, with retries. Also the longest time for which the client
  // works on after it has lost the coordinator.
  absl::Duration connect_timeout = absl::Seconds(60);

  // Longest time of one Wait. After this time the Wait fails and names what is
  // missing. The coordinator notices a dead member much earlier: this limit is
  // for a member that is alive but makes no progress. The limit also holds for
  // Leave (see there).
  absl::Duration round_timeout = absl::Minutes(10);

  // Time for which a round may wait for another member. If a round waits
  // longer, the client reports this wait to the coordinator.
  absl::Duration stall_threshold = absl::Seconds(5);

  // Returns the defaults, except for the fields that these variables set:
  // NEREUS_COORDINATOR (coordinator_address), NEREUS_JOB_NAME (job),
  // NEREUS_NAME, NEREUS_RANK (rank; if it is not set, NEREUS_LOCAL_RANK),
  // NEREUS_HOST, NEREUS_LISTEN, NEREUS_CONTROL_PORT,
  // NEREUS_DATA_PORT, NEREUS_CONNECT_TIMEOUT (in seconds), NEREUS_SHARED_MEMORY
  // ("auto" or "off"), NEREUS_NODE, NEREUS_SHARE (share.folder),
  // NEREUS_SHARE_WEIGHT and NEREUS_SHARE_OPTIONAL ("on" or "off"). The program
  // nereus-worker takes values for its flags from the same variables. An empty
  // variable counts as not set, and so does a port like tcp://10.0.0.1:7001,
  // which Kubernetes sets for a Service. REQUIRES: no other thread changes the
  // environment meanwhile.
  //
  // Errors: kInvalidArgument, with the variable and its value. If
  // NEREUS_COORDINATOR is not set, the result is not valid until the caller has
  // set coordinator_address.
  static absl::StatusOr<ClientOptions> FromEnvironment();

  // Returns OK if all fields are valid, or kInvalidArgument with the name and
  // value of a field that is not.
  absl::Status Validate() const;
};

}  // namespace nereus
