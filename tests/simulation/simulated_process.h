#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/types/span.h"
#include "common/base/crc32c.h"
#include "common/protocol/pulse.h"
#include "tests/simulation/simulated_cluster.h"

namespace nereus {

// For the files of SimulatedCluster alone.

inline constexpr absl::Duration kTickInterval = absl::Milliseconds(200);

// Another process comes in the place of one that has ended by itself.
inline constexpr absl::Duration kReplacementDelay = absl::Seconds(1);

// Where a process would be in questions of who is separated.
inline constexpr ProcessId kCoordinator = -1;

struct SimulatedCluster::Process {
  ProcessId id = 0;
  Role role = Role::kWorker;
  int index = 0;     // Shards: which one.
  std::string name;  // As it said at joining.
  bool alive = true;
  bool stranger = false;
  bool paused = false;
  bool stalled = false;  // Its driver is; its session goes on.
  Pulse pulse;
  bool failed = false;  // A check has: it only sends messages.
  double slowness = 1;
  bool loses_answer = false;  // To its next message to the coordinator.
  std::optional<ProcessId> breaks_after_send;
  bool breaks_now = false;
  std::deque<Task> deferred;  // While it is paused.

  std::unique_ptr<Member> member;
  ServerMachine* server = nullptr;  // The member's, of either role.
  WorkerMachine* worker = nullptr;
  std::optional<SessionId> session;
  absl::Time written_at;     // Its last file is; one at a time.
  absl::Time last_sent;      // To the coordinator, and from it: messages of a
  absl::Time last_told;      // session keep their order.
  std::set<ProcessId> lost;  // Peers whose connection it has lost,
  std::map<ProcessId, int> renewed;  // and how many it has given up itself.

  // Workers.
  int rank = -1;
  int life = 0;                    // Counts its machines.
  std::vector<Buffer> parameters;  // By layer.
  std::vector<Buffer> states;      // The optimizer's, if it runs here.
  std::vector<Buffer> gradients;
  std::vector<Buffer> means;             // Of the last round, where they are.
  std::vector<Buffer> output_gradients;  // Fully connected layers.
  std::vector<Buffer> inputs;
  int64_t step = kInitialRound;  // The one under way, or the next.
  int layers_left = 0;           // Not yet done in this step.
  bool fetching = true;          // The step is the one before its first.
  bool idle = true;              // Between two steps.
  bool skipped = false;          // The step under way is.
  std::vector<uint32_t> sums;  // Of the parameters, by layer, at the last one.
  bool leave_soon = false;
  bool left = false;
};

inline absl::Span<float> Floats(const Buffer& buffer) {
  return absl::MakeSpan(buffer.floats(),
                        static_cast<size_t>(buffer.float_count()));
}

inline Buffer AllocateFloats(int64_t count) {
  return Buffer::AllocateZeroed(count * static_cast<int64_t>(sizeof(float)));
}

inline uint32_t Checksum(const Buffer& buffer) {
  return Crc32c(buffer.data(), static_cast<size_t>(buffer.bytes()));
}

// Where a peer is; data addresses are the numbers of processes: "p7".
inline std::optional<ProcessId> FindProcess(const EpochStart& start,
                                            PeerId peer) {
  for (const EpochMember& each : start.epoch_members) {
    ProcessId process = 0;
    if (each.id == peer &&
        absl::SimpleAtoi(each.data_address.substr(1), &process)) {
      return process;
    }
  }
  return std::nullopt;
}

}  // namespace nereus
