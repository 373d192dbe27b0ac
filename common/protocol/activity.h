#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/peer.h"

namespace nereus {

// Connection that the network slows most, of those of one member.
struct BusyLink {
  PeerId peer;  // Member at the other end.
  // Share of the time in which frames waited because the network was slower
  // than the member, in [0, 1].
  double share = 0;
  // Median share of the member's other connections with as much traffic;
  // nothing: it has none. As large as `share`: the member's own link is slow.
  // Much smaller: the peer's link is. Nothing: either may be.
  std::optional<double> others;

  bool operator==(const BusyLink&) const = default;
};

// Times of a worker's caller in one step, or in several. A step lasts from one
// begin to the next (StepPhases).
struct PhaseTimes {
  absl::Duration forward;    // Before the first push.
  absl::Duration backward;   // From there to the last push.
  absl::Duration other;      // After the last push, such as an optimizer.
  absl::Duration waiting;    // In calls that wait for the job.
  absl::Duration turn = {};  // While another job had the shared device.

  absl::Duration computing() const { return forward + backward + other; }
  absl::Duration total() const { return computing() + waiting + turn; }
  bool operator==(const PhaseTimes&) const = default;
};

// Work of a member since its process joined the job, for the status and the
// metrics. The coordinator decides nothing by it. A value type.
struct Activity {
  int64_t steps = 0;  // Workers: number of steps begun.
  PhaseTimes times;   // Workers: sums over these steps.
  // Bytes of frames that were sent and received.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // The busiest link in the interval before the heartbeat; absent: the member
  // has no connection, or has just joined.
  std::optional<BusyLink> busiest;

  bool operator==(const Activity&) const = default;
};

// Long work of a member. Until it is done, the member answers no message and
// takes no frame. A member whose work gets no further for a lease counts as
// dead. A value type.
struct LongWork {
  enum class Kind : uint8_t {
    kRestore,   // Reads a checkpoint; `done` and `total` are bytes.
    kMultiply,  // Multiplies factors; `done` and `total` are rows.
  };
  Kind kind = Kind::kRestore;
  int64_t done = 0;
  int64_t total = 0;

  bool operator==(const LongWork&) const = default;
};

// Returns what the member does and how far it is, for log lines and the status:
// "restores, 3.0 of 40.0 GB".
std::string DescribeWork(const LongWork& work);

}  // namespace nereus
