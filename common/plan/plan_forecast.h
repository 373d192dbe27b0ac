#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/plan/plan_report.h"
#include "common/plan/timeline.h"
#include "nlohmann/json_fwd.hpp"

namespace nereus {

// Times of a plan: the predictions of Timeline, and after a run also the
// measured times. A value type, for reports.
struct PlanForecast {
  // Times of one layer.
  struct Layer {
    // Predicted seconds of an iteration if this layer went by the scheme of the
    // field's name, and all other layers went as planned. Nothing if the layer
    // does not support the scheme.
    std::optional<double> by_server;
    std::optional<double> by_factor;
    std::optional<double> by_ring;
    std::optional<double> by_direct;
    // Predicted seconds from the layer's gradient to its result on all workers.
    double sync_seconds = 0;
    // Measured seconds from the gradient to the result; nothing before a run.
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
  // Seconds of an iteration in which a worker's device computes: all layers,
  // and products of factors.
  double compute_seconds = 0;
  // Measured seconds of an iteration; nothing before a run.
  std::optional<double> iteration_seconds_measured;
  Fusion fusion;              // Effect of fusion.
  std::vector<Layer> layers;  // Times of each layer.
};

// Predicts the times of a plan. REQUIRES: `model` is valid for the report's
// layers.
PlanForecast MakeForecast(const PlanReport& report, const TimeModel& model);

// Returns an aligned table for people, with lines ended by '\n'. The layers of
// a LayerGroup share a line, which shows the times of the layer with the
// longest sync_seconds. With `all_layers`, each layer has a line.
std::string FormatForecastText(const PlanReport& report,
                               const PlanForecast& forecast,
                               bool all_layers = false);

// Returns the forecast as JSON, for programs. "or null" marks fields that may
// be null. "compute_seconds" includes products of factors, as in the report of
// nereusctl simulate:
//
//   {"link": {"bytes_per_second", "latency_seconds", "message_seconds"},
//    "memory_bytes_per_second": or null,
//    "compute_seconds", "iteration_seconds",
//    "iteration_seconds_measured": or null,
//    "fusion": {"bytes": or null: none, "without_seconds", "best_bytes",
//               "best_seconds"},
//    "layers": [{"name", "scheme", "wire", "forward_seconds",
//                "backward_seconds",
//                "iteration_seconds": {"server", "factor": or null, "ring",
//                                      "direct": or null},
//                "sync_seconds", "sync_seconds_measured": or null}]}
nlohmann::ordered_json ForecastJson(const PlanReport& report,
                                    const PlanForecast& forecast);

}  // namespace nereus
