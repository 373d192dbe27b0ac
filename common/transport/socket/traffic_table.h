#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/peer.h"
#include "common/transport/transport.h"

namespace nereus {

// Bytes exchanged with one peer so far.
struct TrafficCounters {
  std::atomic<int64_t> sent{0};      // Bytes handed to the kernel or the ring.
  std::atomic<int64_t> received{0};  // Bytes of frames delivered or discarded.
  // TrafficCount::busy, in microseconds; -1: no connection has been measured
  // that goes through the network.
  std::atomic<int64_t> busy_us{-1};

  // CountSent and CountReceived count the bytes of one frame with its header.
  // The transport's own frames (hello, refusal, alive) do not count.
  void CountSent(const FrameHeader& header) { sent += Counted(header); }
  void CountReceived(const FrameHeader& header) { received += Counted(header); }
  // Adds to TrafficCount::busy. One thread at a time may call this.
  void AddBlocked(absl::Duration time) {
    busy_us = std::max<int64_t>(busy_us, 0) + absl::ToInt64Microseconds(time);
  }
  std::optional<absl::Duration> busy() const {
    const int64_t us = busy_us;
    return us < 0 ? std::nullopt : std::optional(absl::Microseconds(us));
  }

 private:
  static int64_t Counted(const FrameHeader& header) {
    const bool is_own = header.kind == FrameKind::kHello ||
                        header.kind == FrameKind::kRefusal ||
                        header.kind == FrameKind::kAlive;
    return is_own ? 0 : kFrameHeaderBytes + header.payload_bytes;
  }
};

// Traffic of a transport for each peer, over all its connections so far, and
// the counts of these connections. Thread-safe.
class TrafficTable {
 public:
  // Returns the counters of `peer`. The reference is valid as long as this
  // exists.
  TrafficCounters& CountersOf(PeerId peer) {
    std::lock_guard<std::mutex> lock(mu_);
    return counters_[peer];
  }

  // Returns the traffic with each peer as of now.
  std::vector<TrafficCount> Counts() const {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<TrafficCount> counts;
    for (const auto& [peer, each] : counters_) {
      counts.push_back({peer, each.sent, each.received, each.busy()});
    }
    return counts;
  }

  // Set or count what ConnectionCounts says.
  void SetOpen(int sockets, int memories) {
    std::lock_guard<std::mutex> lock(mu_);
    connections_.sockets = sockets;
    connections_.memories = memories;
  }
  void CountRefusedStranger() {
    std::lock_guard<std::mutex> lock(mu_);
    ++connections_.refused_strangers;
  }
  void CountRefusedPeer() {
    std::lock_guard<std::mutex> lock(mu_);
    ++connections_.refused_peers;
  }
  ConnectionCounts connections() const {
    std::lock_guard<std::mutex> lock(mu_);
    return connections_;
  }

 private:
  mutable std::mutex mu_;
  // These two are guarded by mu_.
  std::map<PeerId, TrafficCounters> counters_;
  ConnectionCounts connections_;
};

}  // namespace nereus
