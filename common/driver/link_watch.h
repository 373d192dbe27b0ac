#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/activity.h"
#include "common/protocol/peer.h"
#include "common/transport/transport.h"

namespace nereus {

// Finds the busiest of a member's links from the traffic that its transport
// counts. Pure.
class LinkWatch {
 public:
  // Sets the fields of `activity` that are about traffic. The busiest link is
  // that of the time since the last call.
  void Measure(const std::vector<TrafficCount>& traffic, absl::Time now,
               Activity& activity);

 private:
  // Counts of a peer at the last call.
  struct Last {
    absl::Duration busy;
    int64_t bytes_sent = 0;
  };
  std::map<PeerId, Last> last_;
  absl::Time at_ = absl::InfinitePast();  // Time of the last call.
};

}  // namespace nereus
