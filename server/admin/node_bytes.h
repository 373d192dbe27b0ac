#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/messages/worker_event.h"
#include "common/plan/cost_model.h"
#include "common/plan/plan_report.h"
#include "common/protocol/job_spec.h"
#include "server/admin/local_options.h"

namespace nereus {

// Bytes that each node sent plus received in the whole run, including those of
// the initial parameters. Node i consists of the processes that play host i
// (LocalOptions::cluster). Bytes between two processes of a node do not count.
struct NodeBytes {
  // Empty: the job was disturbed.
  std::vector<int64_t> measured = {};
  // Empty: there is no prediction.
  std::vector<int64_t> predicted = {};

  // Return the bytes of the busiest node; 0 without a figure.
  int64_t busiest_measured() const { return Busiest(measured); }
  int64_t busiest_predicted() const { return Busiest(predicted); }

 private:
  static int64_t Busiest(const std::vector<int64_t>& nodes);
};

// True if the plan of the job depends on what its workers measure.
bool PlansByTime(const JobSpec& spec);

// Returns the cluster for which the job is planned. ClusterShape::hosts is 0 if
// each worker sends its own gradients, because it is alone on its host or
// rounds are partial.
ClusterShape PlannedCluster(const LocalOptions& options);

// Returns the reason why bytes are not predicted. Empty: they are.
std::string WhyNotPredicted(const LocalOptions& options);

// Returns the bytes of a job that was not disturbed, measured and, unless there
// is a reason against it (WhyNotPredicted), predicted. REQUIRES: `workers` are
// the results of all workers, by rank, each with the number of its process;
// they report traffic only with workers and shards of the job.
NodeBytes CountNodeBytes(const LocalOptions& options, const PlanReport& plan,
                         const std::vector<WorkerResult>& workers);

}  // namespace nereus
