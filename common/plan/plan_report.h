#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"

namespace nereus {

// What a plan costs, summed over the layers. Elements and bytes are what one
// node sends plus receives per step, headers not counted.
struct PlanTotals {
  int64_t parameters = 0;
  int64_t chunks = 0;

  // By Poseidon's table 1, for a node that is worker and server: if every layer
  // went through the servers, and by the plan. Unlike RouteExplanation they
  // count all of a layer's parameters that travel, biases included.
  int64_t elements_server_only = 0;
  int64_t elements_planned = 0;

  // The same in bytes: 4 each for the servers alone, by the routes' wire types
  // for the plan.
  int64_t bytes_server_only = 0;
  int64_t bytes_planned = 0;

  // By the placement, for the node that moves most.
  int64_t busiest_node_bytes_server_only = 0;
  int64_t busiest_node_bytes_planned = 0;
};

// A model, its plan and its placement.
struct PlanReport {
  std::string model;
  int64_t batch = 0;
  std::vector<LayerSpec> layers;
  PlanOptions options;
  Plan plan;
  Placement placement;
  PlanTotals totals;
};

// Plans `layers`, whose rows were made for `batch` samples; `model` and `batch`
// are only reported.
//
// Errors: kInvalidArgument, bad layers or cluster.
absl::StatusOr<PlanReport> MakePlanReport(std::string model, int64_t batch,
                                          std::vector<LayerSpec> layers,
                                          const PlanOptions& options);

// The same, of a plan that is there. REQUIRES: it is one for these layers.
absl::StatusOr<PlanReport> MakePlanReport(std::string model, int64_t batch,
                                          std::vector<LayerSpec> layers,
                                          const PlanOptions& options,
                                          Plan plan);

// An aligned table for people, with totals and reasons, lines ended by '\n'.
// Layers that differ in nothing but their names share a line, with their sums,
// unless `all_layers`.
std::string FormatPlanText(const PlanReport& report, bool all_layers = false);

// The same for programs, indented, without a final newline:
//   {"model", "workers", "servers", "batch", "cost",
//    "scheme": "auto" or the forced one, "wire",
//    "layers": [{"name", "kind", "m", "n", "k": rows, "parameters", "scheme",
//                "wire", "reason", "elements": {"server", "factor": or null,
//                "ring"}, "chunks"}],
//    "totals": {"parameters", "chunks", "elements_server_only",
//               "elements_planned", "bytes_per_node_server_only",
//               "bytes_per_node_planned", "busiest_node_bytes_server_only",
//               "busiest_node_bytes_planned"},
//    "shard_bytes": [what each shard owns]}
// A layer's "elements" are RouteExplanation's; the totals are PlanTotals'. What
// is not UTF-8 in `model` is replaced.
std::string FormatPlanJson(const PlanReport& report);

}  // namespace nereus
