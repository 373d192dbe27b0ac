#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Compares the replicas of the workers by their checksums. Workers report
// checksums of samples about once a second, and checksums of all parameters as
// of each saved round and as of their last round. Replicas that differ are an
// error of a caller: its optimizer differs from the optimizer of other callers,
// or it has itself changed parameters that the job updates. Or the memory of a
// machine has changed a value.
//
// When two reports of a round differ, the check waits for those of the other
// workers, at most kOthersWait. So the error names the workers that deviate
// from the most, where there are most.
//
// Plain bookkeeping. Bounded: keeps the reports of the last 8 samples and of
// the last 8 other rounds; of each round at most 8 reports that differ, and the
// names of all workers.
class ReplicaCheck {
 public:
  // Longest time that a difference waits for the reports of other workers.
  static constexpr absl::Duration kOthersWait = absl::Seconds(2);

  // Takes a report of `member`. Ignores a report of an earlier epoch: workers
  // may have done its round again since. Ignores a second report of one worker.
  // Returns the reason why the job must end if the replicas differ: it names
  // the first layer that differs, the step and the workers. Returns nothing if
  // they are equal as far as is known, or if a difference waits. Errors:
  // kInvalidArgument, the report does not fit the model.
  absl::StatusOr<std::optional<Announce>> OnChecksums(
      const MemberRecord& member, const ReplicaChecksums& checksums,
      const Job& job, absl::Time now);

  // Returns the reason if a difference has waited for kOthersWait; with
  // absl::InfiniteFuture(), if any difference waits. The caller must ask before
  // it finishes the job or begins an epoch.
  std::optional<Announce> Settle(absl::Time now, const Job& job) const;

  // Forgets all reports. Called when an epoch begins, because workers may do
  // rounds again in it.
  void Clear() { rounds_.clear(); }

 private:
  // Reports that are equal.
  struct Group {
    std::vector<uint32_t> layers;              // ReplicaChecksums::layers.
    std::map<int32_t, std::string> reporters;  // Names, by rank.
  };
  struct Round {
    std::vector<Group> groups;
    absl::Time differs_at = absl::InfiniteFuture();  // Second group's time.

    int64_t reports() const;
  };
  // Key: true for samples; round.
  using Rounds = std::map<std::pair<bool, int64_t>, Round>;

  // Returns the reason. REQUIRES: the round has more than one group.
  static Announce Difference(Rounds::const_reference round, const Job& job);
  // Forgets the oldest round of a kind if there are too many. Returns the
  // reason if that round has a difference.
  std::optional<Announce> ForgetOldest(bool is_sample, const Job& job);

  Rounds rounds_;
};

}  // namespace nereus
