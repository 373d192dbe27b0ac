#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/messages/worker_event.h"
#include "common/plan/plan_report.h"
#include "server/admin/local_options.h"
#include "server/admin/node_bytes.h"

namespace nereus {

// Returns the name of an option or flag in JSON: "learning_rate".
std::string JsonName(const std::string& flag);

// Outcome of a local job.
struct LocalOutcome {
  // Signal that ended the job: SIGINT, SIGTERM or SIGHUP. 0: the job is done.
  int signal = 0;

  // Number of processes that were started again.
  int restarts = 0;
  // Number of workers that were given up (LocalProcess::is_given_up).
  int lost = 0;
  // Number of servers that the job went on without.
  int lost_servers = 0;
  // True if the job finished, and the coordinator could not save the model of
  // the last step.
  bool is_not_saved = false;

  // Results of the workers that were not lost. Empty after a signal.
  std::vector<WorkerResult> workers;
};

// Report on a finished local job.
struct LocalReport {
  // Options of the job.
  LocalOptions options;
  // Plan at the end of the job.
  PlanReport plan;
  // Outcome. The results of the workers are in the order of ranks or, if the
  // job was disturbed, in the order of processes.
  LocalOutcome outcome;

  // Number of times that a worker joined again.
  int rejoins = 0;
  // Last step of the job. -1: none.
  int64_t last_step = -1;
  // Round of the newest checkpoint. -1: none.
  int64_t saved_round = -1;

  // Accuracy on the test images. Absent if no worker measured it.
  std::optional<double> test_accuracy = std::nullopt;
  // True if all workers ended with the same parameters, bit for bit.
  bool replicas_equal = true;

  // Images of all workers, divided by seconds.total.
  double images_per_second = 0;
  // Total time of the slowest worker, and means of the phases over the workers.
  PhaseSeconds seconds = {};
  NodeBytes bytes = {};

  const std::vector<WorkerResult>& workers() const { return outcome.workers; }

  // True if a process was started again, the job went on without a worker or a
  // server, or a worker joined again. Then different workers may have done
  // different work, so their bytes are not compared with the prediction.
  bool is_disturbed() const {
    return outcome.restarts > 0 || rejoins > 0 || outcome.lost > 0 ||
           outcome.lost_servers > 0;
  }

  // Returns the worker that did most steps.
  const WorkerResult& longest() const;
};

// Makes the report of a job that is done. Errors: kInternal, with both values:
// the results contradict each other, the options or the plan. The cause is a
// bug, or that processes are of different builds.
absl::StatusOr<LocalReport> MakeLocalReport(const LocalOptions& options,
                                            LocalOutcome outcome);

// Returns the layers that a worker trained.
std::vector<LayerSpec> LayersOf(const WorkerResult& worker);

// Returns the first plan of a job with these options. It is a plan by bytes
// (CostKind::kBytes), whatever options.rules.cost is. If `last`, the result of
// a worker, is not null, returns the last plan of the job: it has the routes
// and reasons that the worker reported. Errors: those of MakePlan.
absl::StatusOr<Plan> PlanOfRun(absl::Span<const LayerSpec> layers,
                               PlanOptions options, const WorkerResult* last);

// Returns the report as text, lines ended by '\n': the plan, the cost of each
// layer, and the figures.
std::string FormatLocalText(const LocalReport& report);

// Returns the report as JSON, indented, without a final newline:
//   {"hosts", "restarts", "rejoins", "lost", "lost_servers", "last_step",
//    "saved_round": or null, "test_accuracy": or null, "replicas_equal",
//    "images_per_second", "seconds", "skipped_steps", "node_bytes_measured",
//    "node_bytes_predicted": or null, "phases": {"forward_seconds",
//    "backward_seconds", "wait_seconds", "turn_seconds"},
//    "nodes": [{"bytes_measured", "bytes_predicted": or null}],
//    "workers": [the workers' own reports],
//    "plan": see FormatPlanJson, "settings": {the options}}
// "hosts" is the number of hosts with workers. The two node_bytes are those of
// the busiest node. "nodes" is empty if the job was disturbed.
std::string FormatLocalJson(const LocalReport& report);

// Returns one line about a running job, without '\n': the step of the slowest
// worker and its pass over the images, the mean loss, and the sums of images
// per second and bytes. `latest` is indexed by worker; absent: the worker has
// not reported yet.
std::string FormatProgress(
    absl::Span<const std::optional<WorkerProgress>> latest);

}  // namespace nereus
