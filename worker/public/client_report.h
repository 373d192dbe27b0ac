#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/plan/timeline.h"

namespace nereus {

// Cost of one layer on this worker, since Connect.
struct LayerReport {
  std::string name;  // Name of the layer.
  // Scheme of the current plan: "server", "factor", "ring" or "direct".
  std::string scheme;
  // Wire type of the current plan: "fp32", "bf16" or "fp16".
  std::string wire = "fp32";
  // Reason why the planner chose the scheme, as a sentence for users. In a job
  // with `--cost=bytes` it names the traffic of the other schemes, too.
  std::string reason;
  int64_t rounds = 0;  // Number of rounds that are done.
  // Bytes sent and received for this layer, frame headers included.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Time from Push until the round was done, summed over all rounds.
  absl::Duration latency_total;
};

// Bytes exchanged with one peer since Connect, frame headers included.
struct PeerTraffic {
  // True if the peer is a server; false if it is a worker.
  bool is_shard = false;
  int rank = 0;  // Rank of the peer.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// Measurements of one worker. Times are medians over the worker's last steps.
// One worker of each host measures the host's link; if the host has more
// workers, another one measures its memory. Their speeds are those of the
// fastest among the last probes.
struct Measurements {
  std::vector<LayerTime> times;  // Compute times, by layer.
  absl::Duration step_time;      // Time of one whole step.
  // Speed of the host's link. Absent: another worker measures it.
  std::optional<LinkSpeed> link;
  // Bytes per second that the workers of the host together hand each other
  // through memory. Absent: another worker measures it, or nothing is to be
  // measured.
  std::optional<double> memory_rate;
  // True if the caller waits for layers in forward passes, and not for all of
  // them at the end of a step.
  bool waits_in_forward = false;
};

// Time in which a GPU computed or copied for one layer. Times count from the
// beginning of the timeline.
struct GpuSpan {
  enum class Kind {
    // Work on the caller's stream: from the begin of the step, or from the last
    // push or wait, to the push of this layer or to a wait for it.
    kCompute,
    kCopyOut,  // Copy of a gradient to the host.
    kCopyIn,   // Copy of a result, or of a part of it, to the GPU.
  };
  Kind kind = Kind::kCompute;  // Kind of work in the span.
  int layer = 0;               // Index of the layer.
  int64_t step = 0;            // Step that the work belongs to.
  // Begin and end of the span, counted from the first span of the timeline.
  absl::Duration begin;
  absl::Duration end;
};

// Report of a client (Client::Report).
struct ClientReport {
  std::vector<LayerReport> layers;  // Cost of each layer, in forward order.
  std::vector<PeerTraffic> peers;   // Traffic with each peer.
  // Measurements that this worker last sent to the planner. Absent: this worker
  // has not yet measured enough steps or probes, or the job plans by bytes and
  // measures nothing (`--cost=bytes`).
  std::optional<Measurements> measured;
  // Round of the job's newest checkpoint at the time when this worker left;
  // usually this is the last step. Absent: the job has no checkpoint, or this
  // worker has not left.
  std::optional<int64_t> saved_round;
  // Time for which this worker has waited for its turn at a shared device
  // (ClientOptions::share).
  absl::Duration turn_time;
  // Client of a GPU: bytes of layers' values that were copied to the host and
  // to the GPU.
  int64_t bytes_copied_out = 0;
  int64_t bytes_copied_in = 0;
};

}  // namespace nereus
