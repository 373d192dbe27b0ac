#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"

namespace nereus {

// Cost of a plan, summed over the layers. Elements and bytes are those that the
// link of one host, which reports call a node if it has one worker, sends plus
// receives per step; headers are not counted.
struct PlanTotals {
  int64_t parameters = 0;  // Parameters of the model.
  int64_t chunks = 0;      // Chunks of the model.

  // Elements by Poseidon's table 1, for a host with as many workers and servers
  // as any host: if every layer used the servers, and as planned. Unlike
  // RouteExplanation they count all parameters of a layer that travel, biases
  // included.
  int64_t elements_server_only = 0;
  int64_t elements_planned = 0;

  // Bytes of these elements: 4 each for the servers alone, by the routes' wire
  // types for the plan.
  int64_t bytes_server_only = 0;
  int64_t bytes_planned = 0;

  // Bytes of the host that moves most, from the placement (PredictLinkBytes).
  int64_t busiest_node_bytes_server_only = 0;
  int64_t busiest_node_bytes_planned = 0;

  // Elements that the workers of one host hand each other through memory, as
  // planned: sum of RouteExplanation::local_elements, without biases.
  int64_t local_elements_planned = 0;
};

// A model, its plan and its placement. A value type, for reports.
struct PlanReport {
  std::string model;              // Name of the model.
  int64_t batch = 0;              // Samples that a worker takes in a step.
  std::vector<LayerSpec> layers;  // Layers of the model.
  PlanOptions options;            // Arguments of the plan.
  Plan plan;                      // Routes and their reasons.
  Placement placement;            // Shard of each chunk.
  PlanTotals totals;              // Cost of the plan.
};

// Reports `plan`, or if there is none, the one that MakePlan makes. `layers`
// were made for `batch` samples; `model` and `batch` are only reported.
//
// REQUIRES: `plan` is one for these layers. Errors: kInvalidArgument, bad
// layers or cluster.
absl::StatusOr<PlanReport> MakePlanReport(
    std::string model, int64_t batch, std::vector<LayerSpec> layers,
    const PlanOptions& options, std::optional<Plan> plan = std::nullopt);

// Returns an aligned table for people, with totals and reasons, lines ended by
// '\n'. Layers that differ in nothing but their names share a line, with their
// sums, unless `all_layers`.
std::string FormatPlanText(const PlanReport& report, bool all_layers = false);

// Returns the report for programs, indented, without a final newline:
//
//   {"model", "workers", "servers", "batch", "cost",
//    "scheme": "auto" or the forced one, "wire",
//    "fusion_bytes": or null: none,
//    "layers": [{"name", "kind", "m", "n", "k": rows, "parameters", "scheme",
//                "wire", "reason", "elements": {"server", "factor": or null,
//                "ring"}, "chunks"}],
//    "totals": {"parameters", "chunks", "elements_server_only",
//               "elements_planned", "bytes_per_node_server_only",
//               "bytes_per_node_planned", "busiest_node_bytes_server_only",
//               "busiest_node_bytes_planned"},
//    "shard_bytes": [bytes of each shard]}
//
// If ClusterShape::hosts is given, also "hosts", "workers_by_host": [number of
// workers of each host], and "local_elements" in each layer and as
// "local_elements_planned" in the totals.
//
// A layer's "elements" are those of RouteExplanation, the totals those of
// PlanTotals. Bytes of `model` that are not UTF-8 are replaced.
std::string FormatPlanJson(const PlanReport& report);

}  // namespace nereus
