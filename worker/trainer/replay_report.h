#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "worker/public/client_report.h"
#include "worker/trainer/replay.h"

namespace nereus {

// Returns the quantile of `times` at `share`, in [0, 1]: about that share of
// the times is below it. Returns 0 if `times` is empty.
absl::Duration Quantile(std::vector<absl::Duration> times, double share);

// Returns the report as one line of JSON. Reports of a CPU and of a GPU have
// the same keys:
//
//   {"event": "replayed", "rank", "device", "compute_seconds", "steps",
//    "step_seconds_median", "step_seconds_p05", "step_seconds_p95",
//    "step_seconds": [...], "layers": [{"name", "scheme", "wire", "rounds",
//    "bytes_sent", "bytes_received", "latency_seconds_mean"}], "bytes_sent",
//    "bytes_received", "copies"}
//
// "copies" is null on a CPU, otherwise {"bytes_out_per_step",
// "bytes_in_per_step", "hidden_share", "hidden_share_out", "hidden_share_in"}:
// bytes to the host (out) and to the GPU (in), and the share of the copies'
// time in which the GPU also computed (CopyTimes), for all copies and for
// each direction. The first step does not count in the shares: its copies wait
// until memory is pinned. A quantile is null if no step has a time. A share is
// null if there are no copies.
std::string ReplayJson(const ReplayReport& report);

// Returns the report as lines for people: steps, copies of a GPU, network, and
// a line for each layer.
std::vector<std::string> ReplayText(const ReplayReport& report);

}  // namespace nereus
