#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"
#include "server/coordinator/coordinator_outbox.h"

namespace nereus {

// Processes that ask for a place which a member has: the same shard, or the
// same name of a worker. That member's session is open, but the member may be
// dead: its host is gone, or it was killed a moment ago. The process waits
// until the member speaks, and is refused then, or counts as dead.
class PlaceClaims {
 public:
  struct Claim {
    SessionId session = 0;
    JoinRequest request;
    absl::Time since;
  };

  // Adds a claim, and tells the process that it waits. `taken`: why.
  void Add(Claim claim, const absl::Status& taken, CoordinatorOutbox& out);
  // Adds a claim again that was taken.
  void Keep(Claim claim) { claims_.push_back(std::move(claim)); }
  // Removes the claim of a session. Returns true if there was one.
  bool End(SessionId session);
  // Returns all claims, in the order of joining, and has none afterwards.
  std::vector<Claim> TakeAll() { return std::exchange(claims_, {}); }

  // Adds a time in which this process stood still: what is heard now may have
  // been said before it.
  void Delay(absl::Duration pause);

 private:
  std::vector<Claim> claims_;
};

}  // namespace nereus
