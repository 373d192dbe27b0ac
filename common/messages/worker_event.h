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
// of JSON. `nereusctl local` and scripts of users read them.

// Event that a worker writes about once a second: its progress.
struct WorkerProgress {
  int rank = 0;
  // Number of the current pass over the training data, from 1. This is not an
  // epoch of the membership.
  int64_t epoch = 0;
  // Number of passes of the whole training.
  int64_t epochs = 0;
  // Number of steps that the job has done.
  int64_t step = 0;
  // Number of steps of the whole training, as expected now.
  int64_t steps = 0;
  // Mean loss of the steps since the last event. NaN: none of these steps had a
  // finite loss.
  double loss = 0;
  // Number of images that this worker trains on per second.
  double images_per_second = 0;
  // Bytes sent plus received so far.
  int64_t bytes = 0;
};

// Traffic and times of one layer on one worker.
struct LayerResult {
  // Name, kind and shape of the layer.
  LayerSpec spec;
  // Names of the scheme and of the wire type at the end of the run: "factor",
  // "fp32". A standalone worker writes the scheme "none", which
  // ParseWorkerEvent refuses.
  std::string scheme = "server";
  std::string wire = "fp32";
  // Reason that the planner gives for the scheme.
  std::string reason;
  // Number of rounds that are done.
  int64_t rounds = 0;
  // Number of bytes of the layer's frames, headers included.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Mean time from the push of the gradient until the round is done, in
  // seconds.
  double latency_seconds_mean = 0;
  // Computing times of the layer, if the worker has measured them.
  LayerTime time = {};

  // Returns scheme and wire type. REQUIRES: `scheme` and `wire` are valid
  // names, as in each result of ParseWorkerEvent.
  Route route() const;
};

// Number of bytes between one worker and one peer, frame headers included.
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
  // Time from the beginning of the first step to the end of the last step.
  double total = 0;
  // Time of all forward passes, and of all backward passes.
  double forward = 0;
  double backward = 0;
  // Time for which the worker waited for rounds of layers.
  double wait = 0;
  // Time for which it waited for its turn at a shared device (--share).
  double turn = 0;
};

// Steps that a worker has done.
struct WorkerSteps {
  // Number of steps since the worker joined. A step that it has done twice,
  // because the job went back to a checkpoint, counts twice.
  int64_t done = 0;
  // Number that the last step has in the job. -1: the worker has done no step.
  int64_t last = -1;
  // Number of steps that all workers skipped because of a NaN or an infinity.
  int64_t skipped = 0;
  // Mean loss over the last pass. NaN: none of its steps had a finite loss.
  double train_loss = 0;
};

// Measurements of a worker in a job whose plan minimises time.
struct WorkerMeasurements {
  // Time of one step.
  absl::Duration step_time;
  // Speed of the host's link. Absent: another worker has measured it.
  std::optional<LinkSpeed> link;
  // Bytes per second through the host's memory. Absent: another worker has
  // measured it, or the worker was alone on its host.
  std::optional<double> memory_rate;
  // True if the worker's program waits for layers in forward passes.
  bool waits_in_forward = false;
};

// Event that a worker writes at its end: its report.
struct WorkerResult {
  // Number of the worker among those that `nereusctl local` has started. It can
  // differ from the rank, because the coordinator gives ranks in the order of
  // joining. ReferenceWorkers sets it; the event does not have it.
  int process = 0;
  // Rank of the worker at the end.
  int rank = 0;
  // Number of times that the process has joined the job.
  int joins = 1;
  // Number of workers in this worker's last step. 0: it had no step to do.
  int workers = 0;
  // Steps that the worker has done.
  WorkerSteps steps;
  // Round of the job's newest checkpoint at the end. Absent: there is none.
  std::optional<int64_t> saved_round;
  // Accuracy on the test data. Absent: the worker has not measured it.
  std::optional<double> test_accuracy;
  // Number of images that the worker has trained on.
  int64_t images = 0;
  // Times of the worker's steps.
  PhaseSeconds seconds;
  // Checksum of all parameters, in the order of the layers: eight hexadecimal
  // digits.
  std::string parameter_checksum;
  // Number of bytes that the worker sent and received before its first step.
  int64_t initial_bytes = 0;
  // Traffic and times of each layer, in forward order.
  std::vector<LayerResult> layers;
  // Traffic between the worker and each peer.
  std::vector<WorkerTraffic> traffic;
  // Absent if the worker has measured nothing.
  std::optional<WorkerMeasurements> measured;
  // JSON object that ParseWorkerEvent has read. The event does not have it.
  std::string json;

  // Returns the name in messages of `nereusctl local`: "worker 2".
  std::string name() const { return absl::StrCat("worker ", process); }
};

using WorkerEvent = std::variant<WorkerProgress, WorkerResult>;

// Returns an event as one line of JSON: {"event":"progress","rank":0,...}, or
// {"event":"done","rank":0,...}. A number that is not finite becomes null, and
// U+FFFD replaces bytes that are not UTF-8. "measured" is null, or an object
// with "step_seconds", "link", "memory_bytes_per_second" and
// "waits_in_forward". "link" is null, or an object with "bytes_per_second",
// "latency_seconds" and "message_seconds".
// If "measured" is an object, each layer has "forward_seconds" and
// "backward_seconds".
std::string FormatWorkerEvent(const WorkerProgress& progress);
std::string FormatWorkerEvent(const WorkerResult& result);

// Reads one line of a worker's output. Errors: kInvalidArgument; the message
// names the field that is missing, has a wrong type, or is out of range.
absl::StatusOr<WorkerEvent> ParseWorkerEvent(absl::string_view line);

}  // namespace nereus
