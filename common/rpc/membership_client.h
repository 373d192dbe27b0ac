#ifndef NEREUS_COMMON_RPC_MEMBERSHIP_CLIENT_H_
#define NEREUS_COMMON_RPC_MEMBERSHIP_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/membership.h"

namespace nereus {

// A member's line to its coordinator: joins, reports that it lives, leaves.
// Thread-safe, but Join, which comes first.
class MembershipClient {
 public:
  // `coordinator_address`: "host:port".
  explicit MembershipClient(const std::string& coordinator_address);

  ~MembershipClient();

  // Blocks until all members are there; logs who is missing meanwhile. Looks
  // for the coordinator with backoff for `connect_timeout`; once it answers,
  // waits as long as it takes. Errors: kUnavailable, nobody answers at the
  // address (named); else what Coordinator.Join answers
  // (proto/coordinator.proto); kCancelled, after Cancel.
  absl::StatusOr<Welcome> Join(const JoinRequest& request,
                               absl::Duration connect_timeout);

  // Ends a Join under way on another thread, and every later one.
  void Cancel();

  // From now on, reports every `interval` on a thread of its own. `report`
  // fills in a member's numbers; `verdict` hears each answer, and an error once
  // the coordinator has not answered for `patience`. Neither may call back in
  // here.
  using Report = std::function<void(Heartbeat& heartbeat)>;
  using Verdict =
      std::function<void(const absl::StatusOr<JobVerdict>& verdict)>;
  void StartHeartbeats(const Welcome& welcome, PeerId self,
                       absl::Duration interval, absl::Duration patience,
                       Report report, Verdict verdict);

  // No report or verdict is called afterwards. Called by the destructor too.
  void StopHeartbeats();

  // Tells the coordinator at once that a peer's connection ended.
  void ReportLostPeer(PeerId peer, const std::string& reason);

  // Tells the coordinator that this member's work is done. Heartbeats go on.
  absl::Status Leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nereus

#endif  // NEREUS_COMMON_RPC_MEMBERSHIP_CLIENT_H_
