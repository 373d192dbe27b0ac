#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/network/simulated_network.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "tests/simulation/simulated_storage.h"

namespace nereus {

// Events of a simulated cluster. The cluster tells the laws each event, with
// the values that they compare. So a test of a law can make up an event, and
// needs no cluster. Pointers and spans are valid only during Law::Observe.

// Values of a layer, and their CRC-32C.
struct LayerValues {
  absl::Span<const float> values;
  uint32_t checksum = 0;
};

// A layer on a worker, and the round that it is at.
struct LayerPlace {
  ProcessId process = 0;     // Process of the worker.
  int rank = 0;              // Rank of the worker.
  int layer = 0;             // Layer, as an index of the model.
  int64_t round = 0;         // Round with the values as its result.
  const Job* job = nullptr;  // Job as of the worker's epoch.
  bool operator==(const LayerPlace&) const = default;
};

// A worker has the result of a round of a layer, or its first values.
struct RoundDone {
  LayerPlace place;
  // True for the first values of a machine: it took no part in the round.
  bool is_first = false;
  bool skipped = false;  // The step is skipped; parameters stay as they are.
  LayerValues parameters;
  // Mean gradient. Set if the worker runs the optimizer and took part in the
  // round: the mean is then the result.
  std::optional<LayerValues> mean;
};

// A worker's own optimizer has updated the parameters of a layer.
struct ParametersUpdated {
  LayerPlace place;
  LayerValues parameters;
};

// A worker has fetched a layer a second time, for a new plan.
struct FetchedAgain {
  LayerPlace place;
  LayerValues parameters;
};

// A worker has the results of all layers of a step.
struct StepDone {
  ProcessId process = 0;
};

// A worker has the answer of a gathering.
struct WorkerGathered {
  int rank = 0;
  uint64_t epoch = 0;  // Epoch of the worker.
  std::string value;   // Its own value.
  Gathered answer;
};

// A test asks the cluster for more steps.
struct RunBegins {};

// A fault strikes or ends, or a member is missing that the job needs. The next
// step may therefore take longer (BoundedWaitLaw).
struct Disturbed {};

// The coordinator has saved the beginning of an epoch.
struct EpochBegun {
  const Job* job = nullptr;  // Job as of the new epoch.
  // True if the whole job goes back to the base round.
  bool all_from_base = false;
  // Ranks of workers that go back to the base round.
  std::vector<int32_t> workers_from_base;
};

// A member enters an epoch.
struct EpochEntered {
  ProcessId process = 0;
  const EpochStart* start = nullptr;  // Message that began the epoch.
  // Host claims of start->epoch_members, in their order.
  std::vector<HostClaim> claims;
  // Members that could not connect to other workers of their host, and that may
  // be hosts of their own for this.
  std::set<PeerId> apart = {};
};

// The coordinator has admitted a process. The process makes its machine now.
struct Admitted {
  ProcessId process = 0;
  bool stranger = false;  // The process has no place in the job.
};

// The membership of a process has ended.
struct MemberEnded {
  ProcessId process = 0;
  bool stranger = false;         // The process has no place in the job.
  bool is_coordinators = false;  // The coordinator lives in the process.
  absl::Status outcome;          // Reason, as the process has heard it.
};

// The coordinator has told a process that it counts as dead.
struct CountedAsDead {
  ProcessId process = 0;
  std::string reason;
  // Time for which nothing has kept the process from answering: it runs, and
  // its session is open. Nothing: something does.
  std::optional<absl::Duration> able_for;
  absl::Duration lease;  // Lease of the job.
};

// A machine has refused a frame of another machine.
struct FrameRefused {
  ProcessId from = 0;
  ProcessId to = 0;
  absl::Status reason;
};

// A frame has arrived with a wrong checksum. Its sender is still in the frame's
// epoch, so the sender must not have reused the memory of the payload.
struct FrameSpoiled {
  ProcessId from = 0;
  ProcessId to = 0;
  absl::Status reason;
};

// A message or a saved state cannot be decoded from its encoding.
struct Unreadable {
  std::string what;  // Name for messages, such as "a message of process 3".
  absl::Status reason;
};

// A server has handled a frame, and holds memory.
struct ServerHolds {
  int server = 0;            // Number of the server.
  int64_t bytes = 0;         // Bytes that the server holds.
  const Job* job = nullptr;  // Job as of the server's epoch.
};

// Checksums of a chunk on its primary or on its backup.
struct ChunkChecksums {
  uint32_t parameters = 0;
  uint32_t state = 0;  // Checksum of the optimizer's state.
  bool operator==(const ChunkChecksums&) const = default;
};

// A backup has told the primary that it has a chunk as of `round`, and both
// have the same round open.
struct BackupHas {
  ProcessId primary = 0;
  ProcessId backup = 0;
  int layer = 0;
  int chunk = 0;
  int64_t round = 0;  // Round that both have open.
  ChunkChecksums primary_values;
  ChunkChecksums backup_values;
};

// A worker has received the result of a round from a server that has a current
// backup.
struct ResultShown {
  int rank = 0;  // Rank of the worker.
  int layer = 0;
  int chunk = 0;
  int64_t round = 0;         // Round of the result.
  ProcessId backup = 0;      // Process of the backup.
  int64_t backup_round = 0;  // Round that the backup has open.
};

// The manifest of a checkpoint is written: the checkpoint is whole.
struct CheckpointWhole {
  int64_t round = 0;
  SimulatedStorage* disk = nullptr;
};

// A file was written to the disk, or a write failed or tore a file.
struct DiskChanged {
  SimulatedStorage* disk = nullptr;
};

// A byte of a whole checkpoint has changed on the disk.
struct CheckpointRotted {
  int64_t round = 0;
};

// A server could not read its share of a checkpoint.
struct RestoreFailed {
  ProcessId process = 0;
  uint64_t epoch = 0;  // Epoch for which it reads.
  int64_t round = 0;
  absl::Status reason;
};

// The job has ended well.
struct JobEnded {
  int64_t last_step = 0;    // Last step that any worker had done when it left.
  int64_t saved_round = 0;  // Round of the newest checkpoint.
  // True if the job may end without a checkpoint of its last step: it has no
  // disk, the disk fails, or a shard is lost.
  bool may_be_unsaved = false;
};

using ClusterEvent =
    std::variant<RoundDone, ParametersUpdated, FetchedAgain, StepDone,
                 WorkerGathered, RunBegins, Disturbed, EpochBegun, EpochEntered,
                 Admitted, MemberEnded, CountedAsDead, FrameRefused,
                 FrameSpoiled, Unreadable, ServerHolds, BackupHas, ResultShown,
                 CheckpointWhole, DiskChanged, CheckpointRotted, RestoreFailed,
                 JobEnded>;

}  // namespace nereus
