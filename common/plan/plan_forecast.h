#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/plan/plan_report.h"
#include "common/plan/timeline.h"
#include "nlohmann/json_fwd.hpp"

namespace nereus {

// Times of a plan: those that Timeline predicts, and after a run also the
// measured ones. A value type, for reports.
struct PlanForecast {
  // Times of one layer.
  struct Layer {
    // Seconds of an iteration if this layer went by the servers (by factors, on
    // a ring) and all other layers as planned. Nothing if the layer does not
    // support the scheme.
    std::optional<double> by_server;
    std::optional<double> by_factor;
    std::optional<double> by_ring;
    // Seconds from the layer's gradient to its result on all workers.
    double sync_seconds = 0;
    // Measured seconds of this synchronisation; nothing before a run.
    std::optional<double> sync_seconds_measured;
  };
  // Effect of fusion on the iteration.
  struct Fusion {
    double without_seconds = 0;  // Seconds without fusion.
    int64_t best_bytes = 0;      // Best threshold (BestFusion).
    double best_seconds = 0;     // Seconds with that threshold.
  };
  TimeModel model;               // Assumptions of the prediction.
  double iteration_seconds = 0;  // Predicted seconds of an iteration.
  // Seconds of an iteration in which the device computes, including products of
  // factors.
  double compute_seconds = 0;
  // Measured seconds of an iteration; nothing before a run.
  std::optional<double> iteration_seconds_measured;
  Fusion fusion;              // Effect of fusion.
  std::vector<Layer> layers;  // Times of each layer.
};

// Predicts the times of a plan. REQUIRES: `model` is valid for the report's
// layers.
PlanForecast MakeForecast(const PlanReport& report, const TimeModel& model);

// Returns an aligned table for people, with lines ended by '\n'. Layers of one
// LayerGroup share a line, which shows the times of the layer with the longest
// synchronisation. With `all_layers`, each layer has a line.
std::string FormatForecastText(const PlanReport& report,
                               const PlanForecast& forecast,
                               bool all_layers = false);

// Returns the forecast for programs. "compute_seconds" includes products of
// factors, as in the report of nereusctl simulate:
//
//   {"link": {"bytes_per_second", "latency_seconds", "message_seconds"},
//    "compute_seconds", "iteration_seconds",
//    "iteration_seconds_measured": or null,
//    "fusion": {"bytes": or null: none, "without_seconds", "best_bytes",
//               "best_seconds"},
//    "layers": [{"name", "scheme", "wire", "forward_seconds",
//                "backward_seconds",
//                "iteration_seconds": {"server", "factor": or null, "ring"},
//                "sync_seconds", "sync_seconds_measured": or null}]}
nlohmann::ordered_json ForecastJson(const PlanReport& report,
                                    const PlanForecast& forecast);

}  // namespace nereus
