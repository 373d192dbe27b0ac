#pragma once

#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/link_speed.h"

namespace nereus {

// Assumptions about the time of an iteration, measured or guessed.
struct TimeModel {
  std::vector<LayerTime> times;  // Computing time of each layer, on one worker.
  LinkSpeed link;                // Link of each host.
  // Bytes per second that all members of a host together hand each other
  // through memory.
  double memory_rate = std::numeric_limits<double>::infinity();

  // True if workers gather results during the next forward pass
  // (Overlap::kDecoupled).
  bool decoupled = false;
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
