#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/plan/planner.h"
#include "common/protocol/job_options.h"

namespace nereus {

// Rules with which a job starts: the plan makes an iteration short.
inline PlanRules DefaultRules() {
  PlanRules rules;
  rules.cost = CostKind::kTime;
  return rules;
}

// Decisions of a job's owner, made before the job runs.
struct JobSpec {
  std::string name = "default";
  int workers = 1;  // The job starts when so many are there.
  // The job goes on with so many workers, and waits with fewer.
  int min_workers = 1;
  int max_workers = 0;  // So many may be there at a time; 0: `workers`.
  int shards = 1;       // Server shards, one per server.
  PlanRules rules = DefaultRules();
  JobOptions options = {.optimizer = kReferenceOptimizer};
  int checkpoints_kept = 3;  // The newest ones.
  // Seconds of silence after which a member counts as dead.
  double lease_seconds = 10;

  int workers_max() const { return max_workers > 0 ? max_workers : workers; }

  // OK, or kInvalidArgument: an option that is out of range, or two that
  // exclude each other, and why.
  absl::Status Validate() const;
};

// One option of a job. The table of them, JobOptionTable, is what command
// lines, job files, messages, documents and checks have in common.
struct JobOption {
  std::string name;  // "learning-rate": of its flag, and of its key in a file.
  std::string values;  // Values that it takes, for --help: "sgd|adam", "INT".
  std::string help;
  bool is_told = false;  // True if all members are told it (JobOptions).
  bool is_kept = false;  // True if a job that runs keeps it.

  // Its value as text. Set(Get(spec)) gives the same value to the last bit.
  std::function<std::string(const JobSpec&)> get;
  // Errors: kInvalidArgument, `text` is no value of this option.
  std::function<absl::Status(absl::string_view text, JobSpec&)> set;
  // Why its value does not count beside the others: "with --update=sgd"; "":
  // it counts. Null: it always counts.
  std::function<std::string(const JobSpec&)> idle;

  // "--name".
  std::string flag() const { return "--" + name; }
  std::string WhyIdle(const JobSpec& spec) const {
    return idle == nullptr ? "" : idle(spec);
  }
};

// All options, in the order in which --help and documents show them.
const std::vector<JobOption>& JobOptionTable();

// Returns the option of that name; null if there is none.
const JobOption* FindJobOption(absl::string_view name);

// The options in force, for logs: "workers 4, servers 2, ...". Options that do
// not count are left out. `told`: only those that all members are told.
std::string DescribeJobSpec(const JobSpec& spec, bool told);

}  // namespace nereus
