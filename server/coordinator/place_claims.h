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
// dead: its host is gone, or it was killed a moment ago.
//
//   claims --the member sends a message--> refused
//   claims --the member counts as dead---> joins in its place
//
// If the process were refused at once, a supervisor could not restart a worker
// before the lease of the old one has ended.
class PlaceClaims {
 public:
  struct Claim {
    SessionId session = 0;  // Session of the process.
    JoinRequest request;
    absl::Time since;  // Time of the request.
  };

  // Adds a claim, and tells the process that it waits. `taken`: the error that
  // says which member has the place.
  void Add(Claim claim, const absl::Status& taken, CoordinatorOutbox& out);
  // Keeps a claim that TakeAll has returned.
  void Keep(Claim claim) { claims_.push_back(std::move(claim)); }
  // Removes the claim of a session. Returns true if there was one.
  bool End(SessionId session);
  // Returns all claims, in the order of joining, and has none afterwards.
  std::vector<Claim> TakeAll() { return std::exchange(claims_, {}); }

  // Adds a time in which this process stood still: messages that arrive now may
  // have been sent before the claim.
  void Delay(absl::Duration pause);

 private:
  std::vector<Claim> claims_;  // In the order of joining.
};

}  // namespace nereus
