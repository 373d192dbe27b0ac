#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Compares the replicas of the workers by their checksums. Workers report these
// as of each saved round and as of their last round. Replicas that differ are
// an error of a caller: its optimizer differs from the optimizer of other
// callers, or it has itself changed parameters that the job updates.
//
// Plain bookkeeping. Bounded: keeps one report for each of the last 8 rounds.
class ReplicaCheck {
 public:
  // Compares a report of `member` with the first one of its round. Ignores a
  // report of an earlier epoch: workers may have done its round again since.
  // Errors: kInvalidArgument, the report does not fit the model; kDataLoss, the
  // replicas differ; the message names the first layer that differs and both
  // workers.
  absl::Status OnChecksums(const MemberRecord& member,
                           const ReplicaChecksums& checksums, const Job& job);

  // Forgets all reports. Called when an epoch begins, because workers may do
  // rounds again in it.
  void Clear() { first_reports_.clear(); }

 private:
  struct Report {
    std::string name;              // Name of the worker.
    std::vector<uint32_t> layers;  // Checksums, by layer of the model.
  };
  std::map<int64_t, Report> first_reports_;  // First report of each round.
};

}  // namespace nereus
