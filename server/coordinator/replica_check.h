#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// Compares the replicas of the workers by their checksums, which the workers
// report of saved rounds and of their last rounds. Replicas that differ are an
// error of a caller: its optimizer differs from that of the others, or it has
// changed parameters of the job.
//
// Plain bookkeeping. Bounded: keeps one report for each of the last 8 rounds.
class ReplicaCheck {
 public:
  // Compares a report with the first one of its round. `name`: name of the
  // worker, for messages. Errors: kInvalidArgument, the report does not fit the
  // model; kFailedPrecondition, the replicas differ, with the first such layer
  // and both workers.
  absl::Status OnChecksums(const std::string& name,
                           const ReplicaChecksums& checksums, const Job& job);

  // Forgets all reports. Called at the begin of an epoch, in which workers may
  // do rounds again.
  void Clear() { first_reports_.clear(); }

 private:
  struct Report {
    std::string name;              // Name of the worker.
    std::vector<uint32_t> layers;  // Checksums, by layer of the model.
  };
  std::map<int64_t, Report> first_reports_;  // First report of each round.
};

}  // namespace nereus
