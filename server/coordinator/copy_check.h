#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"
#include "server/coordinator/member_list.h"

namespace nereus {

// Compares the two copies of each shard, that of its primary and that of its
// backup, by the checksums that both servers report (CopyChecksums). Copies
// that differ mean that the memory of a machine has changed a value. Which one
// is right is not known, so the job must end.
//
// A report that is lost is not sent again: the next comparison of the chunk
// finds the same difference.
//
// Plain bookkeeping. Bounded: keeps one report of each of the last kRoundsMax
// rounds of a shard.
class CopyCheck {
 public:
  // Takes a report of `member`. Returns the reason why the job must end if the
  // copies differ: it names the layer, the chunk, the values, both servers, the
  // round and both checksums. Ignores a report of an epoch before the last
  // Clear. Errors: kInvalidArgument, the report does not fit the job.
  absl::StatusOr<std::optional<Announce>> OnChecksums(
      const MemberRecord& member, const ReplicaChecksums& checksums,
      const Job& job);

  // Forgets all reports, because all servers do their rounds again from `epoch`
  // on.
  void Clear(uint64_t epoch);

 private:
  static constexpr size_t kRoundsMax = 8;

  struct Report {
    PeerId server;
    std::string name;  // Name and address of the server.
    ReplicaChecksums checksums;
  };

  // Returns the reason. REQUIRES: the checksums differ.
  static Announce Difference(const Report& one, const Report& other,
                             const Job& job);

  // First report of each round, by shard and round.
  std::map<int32_t, std::map<int64_t, Report>> reports_;
  uint64_t first_epoch_ = 0;
};

}  // namespace nereus
