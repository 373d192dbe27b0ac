#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/plan/timeline.h"

namespace nereus {

// Cost of one layer for this worker, since Connect.
struct LayerReport {
  std::string name;
  std::string scheme;  // Scheme of the latest plan: "server", "factor", "ring".
  std::string wire = "fp32";  // Wire type of the plan: "fp32", "bf16", "fp16".
  std::string reason;  // Why the planner chose the scheme, with both figures.
  int64_t rounds = 0;  // Number of rounds done.
  int64_t bytes_sent = 0;  // Payload and frame headers.
  int64_t bytes_received = 0;
  absl::Duration latency_total;  // Time from Push to done, summed over rounds.
};

// Bytes exchanged with one peer since Connect, frame headers included.
struct PeerTraffic {
  bool is_shard = false;  // The peer is a shard; otherwise it is a worker.
  int rank = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// Measurements of one worker, medians over its last steps.
struct Measurements {
  std::vector<LayerTime> times;  // Compute times, by layer.
  absl::Duration step_time;      // Time of one whole step.
  LinkSpeed link;                // Speed of the link to the servers.
};

// Report of a client: costs, traffic, measurements, and the last checkpoint.
struct ClientReport {
  std::vector<LayerReport> layers;
  std::vector<PeerTraffic> peers;
  // Measurements that the planner heard last. Absent: this worker has not
  // measured enough steps, or the job plans by bytes (`--cost=bytes`).
  std::optional<Measurements> measured;
  // Round of the newest checkpoint when this worker left, as a rule the last
  // step. Absent: there is no checkpoint, or this worker has not left.
  std::optional<int64_t> saved_round;
};

}  // namespace nereus
