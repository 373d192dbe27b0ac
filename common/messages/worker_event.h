#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"
#include "common/plan/route.h"
#include "common/plan/timeline.h"

namespace nereus {

// Events that `nereus-worker --json` writes to standard output, each as a line
// of JSON. `nereusctl local` and scripts read them.

// Progress of a worker, written about once a second.
struct WorkerProgress {
  int rank = 0;
  // Current pass over the training data, from 1 (not an epoch of the
  // membership).
  int64_t epoch = 0;
  // Number of passes of the whole training.
  int64_t epochs = 0;
  // Number of steps that are done.
  int64_t step = 0;
  // Number of steps of the whole training, as far as it can be told now.
  int64_t steps = 0;
  // Mean loss since the last event. NaN: no step had a finite loss.
  double loss = 0;
  double images_per_second = 0;
  // Bytes sent plus received so far.
  int64_t bytes = 0;
};

// Cost of one layer for one worker.
struct LayerResult {
  // Name, kind and shape.
  LayerSpec spec;
  // Names of scheme and wire type at the end of the run: "factor", "fp32".
  // "none" for a standalone worker: ParseWorkerEvent refuses such an event.
  std::string scheme = "server";
  std::string wire = "fp32";
  // Reason for the scheme, from the planner.
  std::string reason;
  // Rounds that are done.
  int64_t rounds = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Mean time from the push of the gradient to the end of the round.
  double latency_seconds_mean = 0;
  // Computing time, if it was measured.
  LayerTime time = {};

  // Returns scheme and wire type. REQUIRES: their names are valid, as in each
  // result of ParseWorkerEvent.
  Route route() const;
};

// Bytes between one worker and one peer, with frame headers.
struct WorkerTraffic {
  // True if the peer is a server; false if it is a worker.
  bool is_shard = false;
  // Rank of the worker, or index of the server.
  int rank = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
};

// Seconds that a worker spent in the phases of its steps.
struct PhaseSeconds {
  // From the beginning of the first step to the end of the last step.
  double total = 0;
  double forward = 0;
  double backward = 0;
  // Waiting for layers.
  double wait = 0;
};

// Steps that a worker has done.
struct WorkerSteps {
  // Number of steps, including repeated steps.
  int64_t done = 0;
  // Number of the last step within the job. -1: none.
  int64_t last = -1;
  // Number of steps that all workers skipped because of a NaN or an infinity.
  int64_t skipped = 0;
  // Mean loss over the last pass. NaN: no step had a finite loss.
  double train_loss = 0;
};

// Report of a worker at its end.
struct WorkerResult {
  // Measurements of a worker in a job that plans by time.
  struct Measured {
    // Time of one step.
    absl::Duration step_time;
    // Speed of the worker's link.
    LinkSpeed link;
  };

  // Number of the worker's process in a local job. It may differ from the rank,
  // because ranks are given in the order of joining. LocalJob sets it. Not
  // written.
  int process = 0;
  // Rank at the end.
  int rank = 0;
  // Number of times that the process has joined.
  int joins = 1;
  // Number of workers of the job. 0: there was no step to do.
  int workers = 0;
  // Steps that the worker has done.
  WorkerSteps steps;
  // Round of the newest checkpoint at the end. Absent: there is none.
  std::optional<int64_t> saved_round;
  // Accuracy on the test data. Absent: not measured.
  std::optional<double> test_accuracy;
  // Images that the worker trained on.
  int64_t images = 0;
  // Time of the worker's steps.
  PhaseSeconds seconds;
  // Checksum of all parameters in layer order, eight hexadecimal digits.
  std::string parameter_checksum;
  // Bytes sent and received before the first step.
  int64_t initial_bytes = 0;
  // Layers in forward order.
  std::vector<LayerResult> layers;
  // Bytes between the worker and each peer.
  std::vector<WorkerTraffic> traffic;
  // Absent if nothing was measured.
  std::optional<Measured> measured;
  // The event as it was read, a JSON object. Not written.
  std::string json;

  // Returns the name in messages of `nereusctl local`: "worker 2".
  std::string name() const { return absl::StrCat("worker ", process); }
};

using WorkerEvent = std::variant<WorkerProgress, WorkerResult>;

// Returns an event as one line of JSON: {"event":"progress","rank":0,...}, or
// {"event":"done","rank":0,...}. A number that is not finite becomes null;
// bytes that are not UTF-8 are replaced. "measured" is null, or
// {"step_seconds", "bytes_per_second", "latency_seconds", "message_seconds"};
// then each layer has its "forward_seconds" and "backward_seconds".
std::string FormatWorkerEvent(const WorkerProgress& progress);
std::string FormatWorkerEvent(const WorkerResult& result);

// Reads one line of a worker's output. Errors: kInvalidArgument, with the field
// that is missing, has another type, or is out of range.
absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line);

}  // namespace nereus
