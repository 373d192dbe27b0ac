#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/transport.h"

namespace nereus {

// Bytes exchanged with one peer so far.
struct TrafficCounters {
  std::atomic<int64_t> sent{0};      // Handed to the kernel or the ring.
  std::atomic<int64_t> received{0};  // Delivered or discarded.

  // Each counts one frame with its header. Hellos and refusals are not traffic.
  void CountSent(const FrameHeader& header) {
    if (header.kind == FrameKind::kHello ||
        header.kind == FrameKind::kRefusal) {
      return;
    }
    sent += kFrameHeaderBytes + header.payload_bytes;
  }
  void CountReceived(const FrameHeader& header) {
    received += kFrameHeaderBytes + header.payload_bytes;
  }
};

// Traffic of a transport for each peer, over all its connections so far.
// Thread-safe.
class TrafficTable {
 public:
  // Counters of `peer`. The reference is valid as long as the table.
  TrafficCounters& CountersOf(PeerId peer) {
    std::lock_guard<std::mutex> lock(mu_);
    return counters_[peer];
  }

  // Returns a snapshot, by peer.
  std::vector<TrafficCount> Counts() const {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<TrafficCount> counts;
    for (const auto& [peer, each] : counters_) {
      counts.push_back({peer, each.sent, each.received});
    }
    return counts;
  }

 private:
  mutable std::mutex mu_;
  std::map<PeerId, TrafficCounters> counters_;  // Guarded by mu_.
};

}  // namespace nereus
