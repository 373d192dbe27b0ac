#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "proto/admin.grpc.pb.h"
#include "server/coordinator/coordinator.h"

namespace nereus {

class TraceCall;

// Calls of Admin.Trace. At most one trace is under way.
//
//   Open --TraceOrder to all members--> they record all steps, or those from
//     the one on that the caller wants
//   all of them do, or 10 s are over: the steps are chosen --TraceOrder--> they
//     record these
//   all workers have done the last step --TraceEnd to one member after the
//     other--> each sends its spans, which go on to the caller
//   all have sent, or are gone or silent: the call ends
//
// The first ClockQuestion of a member says that it records. When all do, the
// next heartbeat of each worker says which step it has begun. If the caller
// wants no certain steps, the first one to trace is the one after the largest
// of these.
//
// Only one member sends at a time, so that the coordinator holds the spans of
// few members. The coordinator's decisions do not depend on a trace.
//
// Not thread-safe: the owner holds its lock in each call. The owner must call
// Forget when it gets `cancelled`.
class TraceCalls {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::TraceReply>;

  // `send` sends a message in a session. `cancelled` is called if the caller no
  // longer waits. It runs on a thread of gRPC, without the owner's lock, and
  // may come after the call has ended.
  TraceCalls(std::function<void(SessionId, const CoordinatorMessage&)> send,
             std::function<void(TraceCall*)> cancelled)
      : send_(std::move(send)), cancelled_(std::move(cancelled)) {}

  // Opens a call. Returns its reactor. If the job cannot be traced, the call
  // ends at once with an error.
  Reactor* Open(const v1::TraceRequest& request, const Coordinator& coordinator,
                absl::Time now);

  // Handles a message that the coordinator has handled: a question, a part, or
  // a heartbeat. Other messages are none of a trace.
  void OnMessage(SessionId session, const MemberMessage& message,
                 const Coordinator& coordinator, absl::Time now);
  // Notes that a session is over.
  void OnSessionEnd(SessionId session, absl::Time now);
  // Chooses the steps once all members record. Tells the caller how far the job
  // is, and ends the recording when the last step is done.
  void OnTick(const Coordinator& coordinator, absl::Time now);

  // Ends the call under way, and from now on each new call at once, with an
  // error: the process shuts down.
  void EndAll();
  // Ends a call, if it is still open.
  void Forget(TraceCall* call);

 private:
  // A trace that is under way.
  struct Trace {
    TraceCall* call = nullptr;
    std::string job_name;
    TraceOrder order;   // With the steps, once has_steps.
    int64_t steps = 0;  // Number of steps.
    // First step that the caller wants; -1: any.
    int64_t wanted_first = -1;
    bool has_steps = false;  // True once the steps are chosen.
    absl::Time ordered_at;   // Time of Open.
    // Sessions of members that record, and of those that have sent a heartbeat
    // since all record.
    std::set<SessionId> recording;
    std::set<SessionId> ready;
    // Members that have not sent all their spans, in the order of the replies.
    std::vector<std::pair<SessionId, PeerId>> members;
    int64_t told_round = kInitialRound;  // Last done round told the caller.
    bool is_done = false;                // True once the last step is done.
    // Time of the question to the first of `members` for its spans, or of its
    // last part; infinite: it is not asked yet.
    absl::Time asked_at = absl::InfiniteFuture();
    int64_t spans = 0;  // Number of spans that this member has sent.

    bool has_asked() const { return asked_at < absl::InfiniteFuture(); }
    // True if the first of `members` is asked, in this session.
    bool HasAsked(SessionId session) const {
      return has_asked() && !members.empty() &&
             members.front().first == session;
    }
  };

  // Chooses the members, and sends them the order to record.
  absl::Status Begin(const v1::TraceRequest& request,
                     const Coordinator& coordinator, absl::Time now,
                     TraceCall* call);
  // True if all members are `ready`, or 10 s have passed.
  bool AllRecord(absl::Time now) const;
  void OnQuestion(SessionId session, const ClockQuestion& question);
  void OnHeartbeat(SessionId session, const Coordinator& coordinator,
                   absl::Time now);
  // Hands spans of a member on to the caller.
  void OnPart(SessionId session, const TracePart& part, absl::Time now);
  // Chooses the steps. Tells them to the members, and the caller.
  void ChooseSteps(const Coordinator& coordinator);
  // Goes on to the next member.
  void DropFirst();
  // Asks the first member for its spans, unless too many replies wait to be
  // written. Ends the call if no member is left. REQUIRES: no member is asked.
  void AskNext(absl::Time now);
  // Ends the call under way. Members that record drop their spans.
  void End(const absl::Status& status);

  const std::function<void(SessionId, const CoordinatorMessage&)> send_;
  const std::function<void(TraceCall*)> cancelled_;
  std::optional<Trace> trace_;
  bool stopping_ = false;  // EndAll was called.
};

}  // namespace nereus
