#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/peer.h"
#include "common/transport/connection.h"
#include "common/transport/handshake.h"

namespace nereus {

// Links of one process to its peers. Decides when to dial which peer and which
// peers may connect, and keeps frames until their link is open.
//
// Each link is in one of these states:
//
//          Connect            a socket is made          TCP connects
//   idle ----------> pausing ----------------> dialling ------------> greeting
//                    |  ^  ^                      |                    |    |
//    ask name server v  |  |   attempt fails      |                    |    |
//               looking up +----------------------+--------------------+    |
//                                                            good answer    v
//                                                                         open
//
// A link becomes idle again at a limit (ConnectLimits), when the peer refuses
// for good, when the open connection ends, and by Disconnect or Stop.
//
// In every state but open, a link also becomes open when the peer dials this
// process and this process admits it. There is never more than one open
// connection of a link. This process refuses a second connection of the peer,
// and ends its own attempt when it admits the peer.
//
// Frames for a link that is not open wait, in the order of Send. They leave
// when the link opens, and are dropped when the link becomes idle again. Frames
// that Send gets for an idle link also wait, for any time and in any number:
// the peer may dial this process.
//
// Pure: time is an argument, and the owner of this object makes the sockets.
// When a frame is dropped, the owner of its payload gets the payload back, and
// may call Send at once. Not thread-safe.
class PeerLinks {
 public:
  // An attempt to connect that the owner must begin now.
  struct Attempt {
    PeerId peer;
    std::string address;
  };

  // A link that was given up. The owner must call OnDisconnected of its
  // handler.
  struct Loss {
    PeerId peer;
    absl::Status reason;
  };

  // First bytes for a peer that this process has dialled.
  struct Greeting {
    Preamble preamble;
    Hello hello;
  };

  // `handshake_timeout`: longest time of one attempt.
  explicit PeerLinks(absl::Duration handshake_timeout)
      : handshake_timeout_(handshake_timeout) {}

  // Sets the identities of this process and of its peers in a new epoch. Open
  // links stay open. Before the first roster no attempt begins and no peer is
  // admitted.
  void SetRoster(const Hello& self, Roster roster);

  // Hello of this process; nothing before the first roster.
  const std::optional<Hello>& self() const { return self_; }

  // From now on, takes no frames, ignores Connect and admits no peer. Open
  // links stay open. Links that dial and have frames go on until their
  // deadline. All other links become idle.
  void Stop();

  // Drops all links and their frames, and ends all attempts. The caller must
  // end the open connections.
  void Clear();

  // Dials `peer` at "host:port" until the link is open or a limit is reached.
  // Does nothing to an open link. An attempt under way goes on, even if it
  // dials another address, and ends when it would have ended anyway. The new
  // limits then decide whether the link is given up.
  void Connect(PeerId peer, const std::string& address,
               const ConnectLimits& limits);

  // Makes the link idle, drops its frames, and aborts its connection or attempt
  // if there is one.
  void Disconnect(PeerId peer);

  // Sends `frame` if the link to `to` is open; else the frame waits.
  void Send(PeerId to, Frame frame);

  // True if frames wait for a link that this process is connecting.
  bool HasFramesToDial() const;

  // Time at which the next deadline passes, or the next attempt begins or ends.
  // The owner calls NextLoss and TakeAttempts then.
  absl::Time due_at() const { return due_at_; }

  // Ends attempts that took too long. Gives up one link that is past a limit,
  // and returns it. The caller tells the handler, which may change any link.
  // Then the caller calls NextLoss again, until it returns nothing.
  std::optional<Loss> NextLoss(absl::Time now);

  // Returns the attempts that are due. For each one the owner calls
  // OnLookingUp, OnNoSocket or OnDialling before anything else.
  std::vector<Attempt> TakeAttempts(absl::Time now);

  // Notes that a name server has been asked for the peer's address.
  void OnLookingUp(PeerId peer);

  // Notes that the name server has answered about `address`. `result`: OK, or
  // the error of the name server.
  void OnLookedUp(const std::string& address, const absl::Status& result,
                  absl::Time now);

  // Notes that no socket could be made for the attempt.
  void OnNoSocket(PeerId peer, const absl::Status& reason, absl::Time now);

  // Notes that `connection` is being dialled. It must outlive the attempt.
  // `has_more_addresses`: true if the host's name has further addresses; then,
  // if this attempt fails, the next attempt begins at once.
  void OnDialling(PeerId peer, Connection* connection, bool has_more_addresses,
                  absl::Time now);

  // Notes that TCP has connected the dialled `peer`, and returns the greeting
  // to send. Errors: kUnavailable, the peer is not in the roster (yet): the
  // caller must end the attempt.
  absl::StatusOr<Greeting> Greet(PeerId peer);

  // Checks the hello with which the dialled `peer` answers. Errors: as
  // CheckHello; kFailedPrecondition, another process answers.
  absl::Status CheckAnswer(PeerId peer, const Hello& theirs) const;

  // Notes that the attempt that uses `connection` has failed. If `reason` is
  // kUnavailable, the link tries again later. Otherwise gives the link up and
  // returns it. Does nothing if the link does not use `connection`.
  std::optional<Loss> OnAttemptFailed(PeerId peer, const Connection* connection,
                                      const absl::Status& reason,
                                      absl::Time now);

  // Checks the first bytes of a process that has connected. Errors:
  // kUnavailable, with NotReadyReason, that process should try again later;
  // kFailedPrecondition, it wants to reach another process.
  absl::Status CheckPreamble(const Preamble& preamble) const;

  // Checks whether the connection of the process that sent the hello `theirs`
  // may become the open connection of its link. If so, ends this side's
  // attempt. `address`: address of that process, for messages. Errors: as
  // CheckHello; kUnavailable, with NotReadyReason, that process should try
  // again later; kAlreadyExists, the link is open.
  absl::Status Admit(const Hello& theirs, const std::string& address);

  // Opens the link: the frames that wait go to `connection`. The connection
  // must exist until the link is no longer open.
  void OnOpen(PeerId peer, Connection* connection);

  // Makes the link idle if it uses `connection`. Returns true if it did: the
  // owner must then tell the handler.
  bool OnLost(PeerId peer, const Connection* connection);

 private:
  enum class State {
    kIdle,       // Frames wait for the peer to dial this process.
    kPausing,    // The next attempt begins at `next_attempt_at`.
    kLookingUp,  // A name server has been asked.
    kDialling,   // `connection` is being made.
    kGreeting,   // This side has greeted on `connection`.
    kOpen,       // Frames go to `connection`.
  };

  struct Link {
    // True if this process has to connect and has no socket for the link.
    bool is_unconnected() const {
      return state == State::kPausing || state == State::kLookingUp;
    }
    bool is_attempting() const {
      return state == State::kDialling || state == State::kGreeting;
    }
    // True if attempts have failed to reach a process for too long.
    bool is_unreachable() const {
      return unreachable_for >= limits.unreachable_max;
    }
    // Notes that an attempt has reached a process that listens.
    void NoteReached() {
      unreachable_since = absl::InfiniteFuture();
      unreachable_for = absl::ZeroDuration();
    }

    State state = State::kIdle;
    Connection* connection = nullptr;  // Null unless dialling, greeting, open.
    std::deque<Frame> waiting;         // Empty if open.
    std::string address;               // "host:port" to dial.
    ConnectLimits limits;              // Limits at which the link is given up.
    absl::Time attempt_begun;          // Start of the attempt under way.
    absl::Time attempt_deadline;       // End of that attempt without an answer.
    // Time of the first attempt that failed to reach a process that listens,
    // since the last attempt that reached one. Infinite: there is none.
    absl::Time unreachable_since = absl::InfiniteFuture();
    // Time from unreachable_since to the last such failure.
    absl::Duration unreachable_for;
    absl::Time next_attempt_at;       // Set while pausing.
    absl::Duration backoff;           // Pause after the next failure.
    std::string last_error;           // Reason why the last attempt failed.
    bool attempted = false;           // An attempt began since Connect.
    bool has_more_addresses = false;  // See OnDialling.
  };

  // Makes due_at() at most `when`.
  void Due(absl::Time when);
  // Plans the next attempt after a failure because of `reason`.
  void Retry(Link& link, const absl::Status& reason, absl::Time now);
  // Makes `link` idle and drops its frames; its connection is not closed.
  static void Reset(Link& link);
  // Sets the deadline of the attempt under way: `timeout` after its start, or
  // the deadline of the link if that comes first. Even at the link's deadline,
  // the attempt has a fifth of a second (kAttemptMin).
  void LimitAttempt(Link& link, absl::Duration timeout);
  static Loss GiveUp(PeerId peer, Link& link, const absl::Status& reason);

  const absl::Duration handshake_timeout_;    // Limit of one attempt.
  std::optional<Hello> self_;                 // Nothing before SetRoster.
  Roster roster_;                             // Members of this epoch.
  std::map<PeerId, Link> links_;              // Never shrinks before Clear.
  absl::Time due_at_ = absl::InfinitePast();  // See due_at().
  bool stopped_ = false;                      // Stop was called.
};

}  // namespace nereus
