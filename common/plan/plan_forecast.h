#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/plan/plan_report.h"
#include "common/plan/timeline.h"
#include "nlohmann/json_fwd.hpp"

namespace nereus {

// What a plan should take, by Timeline, and, after a run, what it took.
struct PlanForecast {
  struct Layer {
    // Seconds of an iteration if this layer alone went another way than the
    // plan has it; absent where it cannot.
    std::optional<double> by_server;
    std::optional<double> by_factor;
    std::optional<double> by_ring;
    // From its gradient to the outcome on all workers.
    double sync_seconds = 0;
    std::optional<double> sync_seconds_measured;
  };
  // Seconds of an iteration without fusion, and with the best threshold.
  struct Fusion {
    double without_seconds = 0;
    int64_t best_bytes = 0;
    double best_seconds = 0;
  };
  TimeModel model;
  double iteration_seconds = 0;
  double compute_seconds = 0;  // Of that, with products of factors.
  std::optional<double> iteration_seconds_measured;
  Fusion fusion;
  std::vector<Layer> layers;
};

// REQUIRES: `model` is valid for the report's layers.
PlanForecast MakeForecast(const PlanReport& report, const TimeModel& model);

// An aligned table for people, lines ended by '\n'. Of layers that differ in
// nothing but their names and shares of time, the table has the one whose
// outcome takes longest, unless `all_layers`.
std::string FormatForecastText(const PlanReport& report,
                               const PlanForecast& forecast,
                               bool all_layers = false);

// For programs:
//   {"link": {"bytes_per_second", "latency_seconds", "message_seconds"},
//    "compute_seconds", "iteration_seconds",
//    "iteration_seconds_measured": or null,
//    "fusion": {"bytes": or null: none, "without_seconds", "best_bytes",
//               "best_seconds"},
//    "layers": [{"name", "scheme", "wire", "forward_seconds",
//    "backward_seconds",
//                "iteration_seconds": {"server", "factor": or null, "ring"},
//                "sync_seconds", "sync_seconds_measured": or null}]}
nlohmann::ordered_json ForecastJson(const PlanReport& report,
                                    const PlanForecast& forecast);

}  // namespace nereus
