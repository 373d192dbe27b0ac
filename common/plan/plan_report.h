#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"
#include "common/plan/route.h"

namespace nereus {

// Layers that share one line of a report.
struct LayerGroup {
  std::vector<size_t>
      layers;        // Indices of the layers, ascending, at least one.
  std::string name;  // Name for the line: "conv1", "conv1 and 11 like it".
};

// Puts layers into one group if they differ only in their names and have the
// same route. With `each_alone`, each layer is a group of its own. The groups
// are in the order of their first layers. `routes`: route of each layer.
std::vector<LayerGroup> GroupLayers(absl::Span<const LayerSpec> layers,
                                    absl::Span<const Route> routes,
                                    bool each_alone);

// Cost of a plan, summed over the layers. Elements and bytes are those that one
// host sends plus receives over its link in a step, without headers. Fields
// that end in `_planned` are for the routes of the plan. Fields that end in
// `_server_only` show what the step would cost if every layer used the servers.
// If no host has two workers, texts of reports call a host "node".
struct PlanTotals {
  int64_t parameters = 0;  // Parameters of the model.
  int64_t chunks = 0;      // Chunks of the model.

  // Elements of host 0, by the formulas of cost_model.h. Unlike those of
  // RouteExplanation, they include biases, except the biases of layers that go
  // by factors.
  int64_t elements_server_only = 0;
  int64_t elements_planned = 0;

  // Bytes of these elements. bytes_server_only counts 4 bytes for each element,
  // bytes_planned the bytes of the route's wire type.
  int64_t bytes_server_only = 0;
  int64_t bytes_planned = 0;

  // Bytes of the host that sends plus receives most, by the placement of chunks
  // (PredictLinkBytes).
  int64_t busiest_node_bytes_server_only = 0;
  int64_t busiest_node_bytes_planned = 0;

  // Sum of RouteExplanation::local_elements: elements that the workers of host
  // 0 hand each other through memory, without biases.
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

// Makes the report of `plan`. Without `plan`, makes a plan by MakePlan first.
// `model` and `batch` only appear in the report; `layers` must be the layers
// for `batch` samples.
//
// REQUIRES: `plan`, if given, was made for these layers, and options.cluster is
// valid. Errors: kInvalidArgument, without `plan`: those of MakePlan; with
// `plan`: bad layers or a bad number of servers.
absl::StatusOr<PlanReport> MakePlanReport(
    std::string model, int64_t batch, std::vector<LayerSpec> layers,
    const PlanOptions& options, std::optional<Plan> plan = std::nullopt);

// Returns an aligned table for people. Below the table are the totals, and the
// reasons for the routes of layers that support factors. Lines end with '\n'.
// The layers of a LayerGroup share a line, which shows sums over the group.
// With `all_layers`, each layer has a line.
std::string FormatPlanText(const PlanReport& report, bool all_layers = false);

// Returns the report as JSON, for programs, indented, without a final newline.
// "or null" marks fields that may be null:
//
//   {"model", "workers", "servers", "batch", "cost",
//    "scheme": "auto" or the forced one, "wire",
//    "fusion_bytes": or null: none,
//    "layers": [{"name", "kind", "m", "n", "k": rows, "parameters", "scheme",
//                "wire", "reason", "elements": {"server", "factor": or null,
//                "ring", "direct": or null}, "chunks"}],
//    "totals": {"parameters", "chunks", "elements_server_only",
//               "elements_planned", "bytes_per_node_server_only",
//               "bytes_per_node_planned", "busiest_node_bytes_server_only",
//               "busiest_node_bytes_planned"},
//    "shard_bytes": [bytes of each shard]}
//
// If ClusterShape::hosts is not 0, the report also has "hosts",
// "workers_by_host": [number of workers of each host], "local_elements" in each
// layer, and "local_elements_planned" in the totals.
//
// A layer's "elements" are those of RouteExplanation. The "totals" are those of
// PlanTotals: "bytes_per_node_planned" is bytes_planned, and
// "bytes_per_node_server_only" is bytes_server_only. Bytes of the model's name
// that are not UTF-8 are replaced.
std::string FormatPlanJson(const PlanReport& report);

}  // namespace nereus
