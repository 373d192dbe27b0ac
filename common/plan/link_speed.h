#pragma once

#include "absl/time/time.h"
#include "common/base/status.h"

namespace nereus {

// Speed of a host's link (its connection to the network), equal in both
// directions. A value type.
struct LinkSpeed {
  double rate = 0;  // Bytes per second, each way.
  // Time from the last byte sent to the last byte received.
  absl::Duration latency = absl::ZeroDuration();
  // Time that each message costs its sender, and again its receiver, beside the
  // time for its bytes.
  absl::Duration message_time = absl::ZeroDuration();

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate() const;

  bool operator==(const LinkSpeed&) const = default;
};

// Returns a link with the slower of both values in each field.
LinkSpeed SlowerOf(const LinkSpeed& a, const LinkSpeed& b);

}  // namespace nereus
