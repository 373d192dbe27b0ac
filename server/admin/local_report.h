#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/plan/plan_report.h"
#include "server/admin/local_options.h"
#include "server/admin/worker_event.h"

namespace nereus {

// Name of an option of the job in reports: "learning_rate".
std::string JsonName(const JobOption& option);

// What a finished job on this machine came to.
struct LocalReport {
  LocalOptions options;
  PlanReport plan;
  std::vector<WorkerResult> workers;  // By rank; by name if disturbed.

  std::optional<double> test_accuracy = std::nullopt;

  // Processes that were started again, and workers that were counted as dead
  // and joined again. With any of these, workers did not all do the same, and
  // bytes are not compared with the prediction.
  int restarts = 0;
  int rejoins = 0;
  int lost =
      0;  // Workers that were killed, and that the others went on without.
  bool is_disturbed() const { return restarts > 0 || rejoins > 0 || lost > 0; }

  // The one that did most steps: where processes died, others did fewer.
  const WorkerResult& longest() const;

  // The last step, and the newest checkpoint, as the workers know them; -1:
  // none.
  int64_t last_step = -1;
  int64_t saved_round = -1;

  // Whether all workers ended with the same parameters, bit for bit.
  bool replicas_equal = false;

  double images_per_second = 0;  // All workers' images over `seconds`.
  double seconds = 0;            // The slowest worker's.

  // Means over the workers.
  double forward_seconds = 0;
  double backward_seconds = 0;
  double wait_seconds = 0;

  // What each node sent plus received in the whole run, the distribution of the
  // initial parameters included. Node i is worker i and shard i, as far as they
  // exist; what these two exchange is inside the node and not counted. With
  // sparsity, or plans by time, nothing is predicted.
  std::vector<int64_t> node_bytes_measured = {};
  std::vector<int64_t> node_bytes_predicted = {};

  // The busiest node's.
  int64_t busiest_bytes_measured() const;
  int64_t busiest_bytes_predicted() const;
};

// What happened to the job's processes on the way.
struct LocalEvents {
  int restarts = 0;
  int lost = 0;
};

// `workers`: one result for each worker that was not lost, in any order.
//
// Errors: kInternal where the results contradict each other, the options or the
// plan, naming both values: a bug of ours, or processes of different builds.
absl::StatusOr<LocalReport> MakeLocalReport(const LocalOptions& options,
                                            std::vector<WorkerResult> workers,
                                            const LocalEvents& events = {});

// For people: the plan, what each layer cost, and the figures above. Lines
// ended by '\n'.
std::string FormatLocalText(const LocalReport& report);

// For programs, indented, without a final newline:
//   {"restarts", "rejoins", "lost", "test_accuracy": or null, "replicas_equal",
//    "images_per_second", "seconds", "node_bytes_measured",
//    "node_bytes_predicted", "phases": {"forward_seconds", "backward_seconds",
//    "wait_seconds"}, "nodes": [{"bytes_measured", "bytes_predicted"}],
//    "workers": [the workers' own reports],
//    "plan": FormatPlanJson's, "settings": {the options}}
// The two node_bytes are the busiest node's; what is predicted is null with
// sparsity or plans by time. The plan is the last one.
std::string FormatLocalJson(const LocalReport& report);

// One line about a job under way, without '\n': the slowest worker's epoch and
// step, the mean loss, and the sums of images per second and bytes. `latest`:
// by rank, absent for workers that have not been heard from.
std::string FormatProgress(
    absl::Span<const std::optional<WorkerProgress>> latest);

}  // namespace nereus
