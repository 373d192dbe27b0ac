#pragma once

#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"

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

// Assumptions about the time of an iteration, measured or guessed.
struct TimeModel {
  std::vector<LayerTime> times;  // Computing time of each layer, on one worker.
  LinkSpeed link;                // Link of each host.
  // Bytes per second that all members of a host together hand each other
  // through memory.
  double memory_rate = std::numeric_limits<double>::infinity();

  // True if programs wait for a layer when the next forward pass needs it;
  // false if they wait for all layers at the end of a step.
  bool waits_in_forward = false;
  // Share of a layer's gradient that travels (1 - SparsityOptions::share).
  double share = 1;
  // True if no gradient leaves before the whole backward pass is over
  // (Overlap::kNone).
  bool sequential = false;

  // Returns OK, or kInvalidArgument that names the field and its value.
  absl::Status Validate(absl::Span<const LayerSpec> layers) const;
};

// Returns OK, or kInvalidArgument with the value if `rate` is no rate of a
// memory (TimeModel::memory_rate).
absl::Status CheckMemoryRate(double rate);

}  // namespace nereus
