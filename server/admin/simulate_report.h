#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/admin/simulate/simulated_iteration.h"
#include "server/admin/verdict.h"

namespace nereus {

// A question and its answer.
struct SimulateReport {
  std::string model;
  int64_t batch = 0;
  WhatIf what_if;
  IterationResult result;
  // What the workers that are delayed add to the iteration.
  absl::Duration late;
  std::vector<Verdict::Advice> advice;
  bool all_layers = false;  // In text, a line for each.
};

// The verdict, a table of the layers and the figures, for people.
std::string FormatSimulateText(const SimulateReport& report);

// The same for programs, without a final newline:
//   {"model", "workers", "servers", "batch", "scheme": "auto" or the forced
//    one, "cost", "wire", "overlap", "quorum", "sparsity",
//    "fusion_bytes": or null, "bandwidth_bits_per_second": or null,
//    "latency_seconds", "jitter_seconds", "host_copy_seconds",
//    "message_seconds", "delay_seconds": {worker: seconds},
//    "delay_in_turn_seconds", "iterations", "verdict": VerdictJson's,
//    "single_node_seconds", "iteration_seconds", "compute_seconds",
//    "network_exposed_seconds", "late_seconds": what delayed workers add,
//    "speedup", "samples_per_second",
//    "node_bytes": of the busiest node per iteration, "busiest_node",
//    "bytes_by_node": [...],
//    "layers": [{"name", "kind", "scheme", "reason", "forward_seconds",
//                "backward_seconds", "node_bytes": of the busiest node}]}
// Bytes are sent plus received, with headers; the layers' add up to node_bytes,
// but for what the choice of blocks takes.
// IterationResult says what the times are.
std::string FormatSimulateJson(const SimulateReport& report);

}  // namespace nereus
