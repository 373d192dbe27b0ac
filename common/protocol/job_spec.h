#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "common/protocol/job_options.h"

namespace nereus {

// Returns the rules of a job for which the user sets no flags: the plan
// minimises the time of an iteration.
inline PlanRules DefaultRules() {
  PlanRules rules;
  rules.cost = CostKind::kTime;
  return rules;
}

// All choices of the job's owner. The coordinator keeps them. It sends members
// only `options`, and the plan that it makes by `rules`. A value type.
struct JobSpec {
  std::string name = "default";  // Name of the job.
  int workers = 1;               // Number of workers with which the job starts.
  // Smallest number of workers with which the job goes on. With fewer workers
  // the job waits.
  int min_workers = 1;
  // Largest number of workers at a time; 0: as many as `workers`.
  int max_workers = 0;
  int shards = 1;                    // Number of shards, one for each server.
  PlanRules rules = DefaultRules();  // Rules by which the plan is made.
  // Options that the coordinator sends to all members.
  JobOptions options = {.optimizer = kReferenceOptimizer};
  // True if the first worker that says where the optimizer runs
  // (CallerClaim::optimizer) decides the place. If no worker says so,
  // options.optimizer_place is the place.
  bool optimizer_by_worker = true;
  int checkpoints_kept = 3;  // Number of checkpoints to keep.
  // Lease: seconds of silence after which a member counts as dead.
  double lease_seconds = absl::ToDoubleSeconds(kLeaseDefault);

  // Returns the largest number of workers at a time.
  int workers_max() const { return max_workers > 0 ? max_workers : workers; }

  // Returns OK, or kInvalidArgument: the message names the option that is out
  // of range, or two options that exclude each other, and the reason.
  absl::Status Validate() const;

  // Checks only that no two options exclude each other. Returns OK, or
  // kInvalidArgument: the message names two such options, and the reason.
  absl::Status CheckExclusions() const;
};

// Returns a spec that has `options` and default values elsewhere, so that rows
// of JobOptionTable can read the options. The place of the optimizer is
// options.optimizer_place: optimizer_by_worker is false.
JobSpec SpecOf(const JobOptions& options);

// Option of a job: a row of JobOptionTable. Command lines, job files, messages
// to members, documents and checks are all made from the table, so a new option
// is one row. A row is constant, and any thread may call its functions.
struct JobOption {
  // Name of the option: "learning-rate". Also the name of its flag and its key
  // in a job file.
  std::string name;
  std::string values;  // Values for --help: "sgd|adam", "INT".
  std::string help;    // Help text of the flag.
  // True if the coordinator sends the option to all members, in JobOptions.
  bool is_sent_to_members = false;
  // True if a restarted coordinator refuses to run the job with another value
  // of this option.
  bool is_kept = false;

  // Returns the value of the option in a spec, as text. `set` with this text
  // sets the same value, to the last bit.
  std::function<std::string(const JobSpec&)> get;
  // Sets the value from text. Errors: kInvalidArgument, `text` is not a value
  // of this option.
  std::function<absl::Status(absl::string_view text, JobSpec&)> set;
  // Returns the condition under which the option has no effect, if the spec
  // meets this condition: "with --update=sgd". Returns "" if the option has an
  // effect. Null: the option always has an effect.
  std::function<std::string(const JobSpec&)> idle;

  std::string flag() const { return "--" + name; }  // Returns "--name".
  // Returns the result of `idle`; "" if `idle` is null.
  std::string WhyIdle(const JobSpec& spec) const {
    return idle == nullptr ? "" : idle(spec);
  }
};

// Returns all options, in the order in which --help and documents show them.
const std::vector<JobOption>& JobOptionTable();

// Returns the option called `name`, or null.
const JobOption* FindJobOption(absl::string_view name);

// Returns the options that have an effect, and their values, for logs:
// "workers 4, servers 2, ...". With `told`, returns only those that the
// coordinator sends to members.
std::string DescribeJobSpec(const JobSpec& spec, bool told);

}  // namespace nereus
