#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/protocol/activity.h"
#include "common/protocol/trace.h"

namespace nereus {

// Times of a step, by a trace. A value type.
struct TraceSummary {
  struct Worker {
    std::string name;
    PhaseTimes step;  // Mean times of a step.
  };
  struct Layer {
    int layer = 0;  // Index of the layer.
    // Time for which a worker waited for the layer in a step; mean over the
    // workers.
    absl::Duration waited;
  };

  std::vector<Worker> workers;  // In the order of the trace.
  absl::Duration step;          // Mean over the workers.
  // Median of the workers' computing in a step. If a worker computes longer
  // than this, the others wait for it.
  absl::Duration computing;
  // Computing of the slowest worker beyond `computing`.
  absl::Duration late;
  int slowest = 0;            // Index of the slowest worker.
  std::vector<Layer> layers;  // Layers that are waited for, the longest first.
  // Computing time of each layer: the longest of all workers, for forward and
  // backward apart. Time of forward is split by operations (SplitCompute),
  // because callers do not mark its layers.
  std::vector<LayerTime> times;
};

// Summarises a trace. Errors: kDataLoss, no worker has a span of forward.
absl::StatusOr<TraceSummary> Summarise(const JobTrace& trace);

}  // namespace nereus
