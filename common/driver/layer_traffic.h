#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/protocol/frame.h"

namespace nereus {

// Counts the bytes of each layer's frames, headers included, without probes.
// Only one thread at a time may count; any thread may read.
class LayerTraffic {
 public:
  // Counts frames of layers [0, layers), and ignores frames of other layers.
  explicit LayerTraffic(int layers) : sent_(layers), received_(layers) {}

  // Count a frame that this process has sent or received.
  void CountSent(const Frame& frame) { Count(frame, sent_); }
  void CountReceived(const Frame& frame) { Count(frame, received_); }

  // Return the number of bytes so far. REQUIRES: 0 <= layer < `layers`.
  int64_t bytes_sent(int layer) const { return sent_[layer]; }
  int64_t bytes_received(int layer) const { return received_[layer]; }

 private:
  using Counters = std::vector<std::atomic<int64_t>>;

  static void Count(const Frame& frame, Counters& counters) {
    const FrameHeader& header = frame.header;
    if (header.layer >= counters.size() || header.kind == FrameKind::kProbe) {
      return;
    }
    // No other thread writes the counter, so a load and a store are enough.
    std::atomic<int64_t>& counter = counters[header.layer];
    counter.store(counter.load(std::memory_order_relaxed) + kFrameHeaderBytes +
                      frame.payload.bytes(),
                  std::memory_order_relaxed);
  }

  Counters sent_;      // Bytes sent, by layer.
  Counters received_;  // Bytes received, by layer.
};

}  // namespace nereus
