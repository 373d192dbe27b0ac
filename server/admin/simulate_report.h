#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/admin/diagnosis.h"
#include "server/admin/simulate/shared_device.h"
#include "server/admin/simulate/simulated_iteration.h"

namespace nereus {

// Jobs that share the devices of all nodes (`simulate --with`).
struct SharedReport {
  struct Job {
    std::string name;  // Model of the question's job, or the job's file.
    SharingJob times;
    // Seconds of a step of this job while all jobs are at work.
    double at_once = 0;
    double turns = 0;
  };
  std::vector<Job> jobs;  // The job of the question is the first.
};

// Returns the report of these jobs, whose steps at the same time it predicts.
SharedReport ShareDevices(std::vector<SharedReport::Job> jobs);

// A question to `nereusctl simulate`, and its answer.
struct SimulateReport {
  // Name or file of the model.
  std::string model;
  // Samples of each worker in a step.
  int64_t batch = 0;
  // The question.
  WhatIf what_if;
  // The answer.
  IterationResult result;
  // Time that delayed workers add to the iteration.
  absl::Duration late;
  // The other jobs, if there are any.
  SharedReport shared;
  // Flags that would shorten the iteration.
  std::vector<Diagnosis::Advice> advice;
  // True if the text has a line for each layer. False: equal layers share one.
  bool all_layers = false;
};

// Returns the answer as text: the diagnosis, the question, a table of the
// layers, the figures.
std::string FormatSimulateText(const SimulateReport& report);

// Returns the answer as JSON, indented, without a final newline:
//   {"model", "workers", "servers", "batch", "scheme": "auto" or the forced
//    one, "cost", "wire", "overlap", "quorum", "sparsity",
//    "fusion_bytes": or null, "bandwidth_bits_per_second": or null,
//    "latency_seconds", "jitter_seconds", "host_copy_seconds",
//    "message_seconds", "delay_seconds": {worker: seconds},
//    "delay_in_turn_seconds", "iterations", "verdict": DiagnosisJson's,
//    "single_node_seconds", "iteration_seconds", "compute_seconds",
//    "network_exposed_seconds", "late_seconds": SimulateReport::late,
//    "speedup", "samples_per_second",
//    "node_bytes": of the busiest node, "busiest_node",
//    "bytes_by_node": [...],
//    "layers": [{"name", "kind", "scheme", "wire", "reason",
//                "forward_seconds", "backward_seconds",
//                "node_bytes": of the busiest node}]}
// With --hosts also "hosts" and "memory_bits_per_second": or null. Bytes are
// sent plus received, with headers. With --with also "shared": {"jobs":
// [{"name", "compute_seconds", "link_seconds", "alone_seconds",
// "at_once_seconds", "turns_seconds"}], "at_once_gain", "turns_gain": number of
// steps, relative to one job after the other, "limit": what is busy all the
// time, "device", "link", or "waiting": neither is}. Those of the layers add up
// to node_bytes, except for the frames of the block layer (--sparsity).
// IterationResult explains the times.
std::string FormatSimulateJson(const SimulateReport& report);

}  // namespace nereus
