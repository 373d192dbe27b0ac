#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"

namespace nereus {

// Compares the workers' replicas by the checksums that they report of rounds
// that are saved, and of their last ones. Replicas that differ are an error of
// a caller: its own optimizer does not do what the others' do, or it has
// changed parameters that are the job's.
//
// Plain bookkeeping. Bounded: keeps one report of each of the last rounds.
class ReplicaCheck {
 public:
  // `name`: of the worker, for messages. Errors: kInvalidArgument, the report
  // does not fit the model; kFailedPrecondition, the replica differs: names the
  // first layer that does and both workers.
  absl::Status OnChecksums(const std::string& name,
                           const ReplicaChecksums& checksums, const Job& job);

  // Forgets all reports: some workers do rounds again.
  void Clear() { first_reports_.clear(); }

 private:
  struct Report {
    std::string name;
    std::vector<uint32_t> layers;
  };
  std::map<int64_t, Report> first_reports_;  // By round.
};

}  // namespace nereus
