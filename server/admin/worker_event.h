#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/scheme.h"
#include "common/plan/timeline.h"
#include "common/plan/wire_type.h"

namespace nereus {

// What `nereus-worker --json` writes about once a second.
struct WorkerProgress {
  int rank = 0;
  int64_t epoch = 0;  // The one that it is in, from 1.
  int64_t epochs = 0;
  int64_t step = 0;  // Steps done.
  int64_t steps = 0;
  double loss = 0;  // Mean since the last event; NaN if it isn't a number.
  double images_per_second = 0;
  int64_t bytes = 0;  // Sent plus received so far.
};

// What one layer cost one worker.
struct WorkerLayer {
  LayerSpec spec;
  Scheme scheme = Scheme::kServer;
  WireType wire = WireType::kFloat32;
  std::string reason;  // Why the planner chose it.
  int64_t rounds = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  double latency_seconds_mean = 0;  // From push to ready, over the rounds.
  LayerTime time;                   // If it was measured.
};

// What one worker exchanged with one peer, frame headers included.
struct WorkerTraffic {
  bool is_shard = false;  // Otherwise a worker.
  int rank = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// What a worker writes at its end.
struct WorkerResult {
  std::string name;  // "worker 2"; set by the reader.
  int rank = 0;
  int joins = 1;  // How often this process has joined the job.
  int workers = 0;
  int64_t steps = 0;
  int64_t last_step = -1;     // The job's number of the last of these.
  int64_t saved_round = -1;   // The newest checkpoint as it left; -1: none.
  int64_t skipped_steps = 0;  // Of these: dropped by all, for a NaN.
  double train_loss = 0;
  std::optional<double> test_accuracy;  // Absent where it was not measured.
  int64_t images = 0;
  double seconds = 0;  // From the first step's start to the last one's end.
  double forward_seconds = 0;
  double backward_seconds = 0;
  double wait_seconds = 0;
  std::string parameter_checksum;  // Of all parameters, in layer order.
  std::vector<WorkerLayer> layers;
  std::vector<WorkerTraffic> traffic;

  // What it has measured, if it was asked to.
  struct Measured {
    absl::Duration step_time;
    LinkSpeed link;
  };
  std::optional<Measured> measured;

  // The event as it was written: a JSON object.
  std::string json;
};

using WorkerEvent = std::variant<WorkerProgress, WorkerResult>;

// Reads one line of a worker's output. Errors: kInvalidArgument, naming the
// field that is missing, of another type, or out of range.
absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line);

}  // namespace nereus
