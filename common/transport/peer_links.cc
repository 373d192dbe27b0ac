// Read first Connect, TakeAttempts, OnDialling and OnOpen, the life of a link
// without failures. Then read Retry and NextLoss, which handle failures, and
// Admit, which runs on the side that is dialled. peer_links.h draws the states.
//
// When a function here drops a frame, the owner of the payload may call Send at
// once. So a function drops frames as its last action, or takes them out of the
// link before. Send may add a link to the map, which keeps the iterators and
// references of a std::map valid.

#include "common/transport/peer_links.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Pause before the second attempt; doubles with each failure.
constexpr absl::Duration kBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kBackoffMax = absl::Seconds(1);

// Least time of an attempt, even if the link's deadline is nearer. The owner
// may have been busy until shortly before the deadline, or until after it.
constexpr absl::Duration kAttemptMin = absl::Milliseconds(200);

// Returns `status`. Marks an error that may pass (NotReadyReason), so that the
// dialling side tries again.
absl::Status ComeAgain(const absl::Status& status) {
  return absl::IsUnavailable(status)
             ? UnavailableError(NotReadyReason(status.message()))
             : status;
}

// Returns the error for the case that this process dialled one peer and another
// one answered.
absl::Status WrongPeer(PeerId dialled, PeerId answers) {
  return FailedPreconditionError("handshake: ", PeerName(dialled),
                                 " was dialled, but ", PeerName(answers),
                                 " answered");
}

}  // namespace

void PeerLinks::SetRoster(const Hello& self, Roster roster) {
  self_ = self;
  roster_ = std::move(roster);
  due_at_ = absl::InfinitePast();
}

void PeerLinks::Stop() {
  stopped_ = true;
  for (auto& [peer, link] : links_) {
    // Leaves open links to Clear. Links that dial and have frames go on,
    // because they may still send the frames.
    if (link.state == State::kOpen) continue;
    const bool dials = link.state != State::kIdle;
    if (dials && !link.waiting.empty()) continue;
    if (link.connection != nullptr) link.connection->Close();
    Reset(link);
  }
}

void PeerLinks::Clear() {
  for (auto& [peer, link] : links_) {
    if (link.is_attempting()) link.connection->Close();
  }
  std::exchange(links_, {}).clear();
}

void PeerLinks::Connect(PeerId peer, const std::string& address,
                        const ConnectLimits& limits) {
  Link& link = links_[peer];
  if (stopped_ || link.state == State::kOpen) return;
  // An attempt under way goes on. A lookup goes on only if the address is the
  // same: the name server's answer for another address is useless.
  const bool goes_on =
      link.is_attempting() ||
      (link.state == State::kLookingUp && link.address == address);
  if (!goes_on) link.state = State::kPausing;
  link.address = address;
  link.limits = limits;
  link.next_attempt_at = absl::InfinitePast();
  link.backoff = kBackoffMin;
  link.last_error = "no attempt was made";
  link.attempted = false;
  link.has_more_addresses = false;
  due_at_ = absl::InfinitePast();
}

void PeerLinks::Disconnect(PeerId peer) {
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  Connection* const connection = found->second.connection;
  Reset(found->second);
  if (connection != nullptr) connection->Abort();
}

void PeerLinks::Send(PeerId to, Frame frame) {
  if (stopped_) return;
  Link& link = links_[to];
  if (link.state == State::kOpen) {
    link.connection->Send(std::move(frame));
  } else {
    link.waiting.push_back(std::move(frame));
  }
}

bool PeerLinks::HasFramesToDial() const {
  return absl::c_any_of(links_, [](const auto& entry) {
    const Link& link = entry.second;
    return (link.is_unconnected() || link.is_attempting()) &&
           !link.waiting.empty();
  });
}

void PeerLinks::Due(absl::Time when) { due_at_ = std::min(due_at_, when); }

std::optional<PeerLinks::Loss> PeerLinks::NextLoss(absl::Time now) {
  if (now < due_at_) return std::nullopt;
  for (auto& [peer, link] : links_) {
    if (link.is_attempting() && link.attempt_deadline <= now) {
      link.connection->Close();
      Retry(link, UnavailableError("no answer in time"), now);
    }
    if (!link.is_unconnected()) continue;
    if (link.is_unreachable()) {
      return GiveUp(
          peer, link,
          UnavailableError("reached no process there for ",
                           absl::FormatDuration(link.limits.unreachable_max),
                           ": ", link.last_error));
    }
    if (now < link.limits.deadline) continue;
    // If the owner was busy until after the deadline, possibly no attempt has
    // begun. Then one attempt is still made.
    const bool may_try =
        self_.has_value() && !link.attempted && link.state != State::kLookingUp;
    if (may_try) continue;
    return GiveUp(
        peer, link,
        UnavailableError("not reached before the deadline: ", link.last_error));
  }
  return std::nullopt;
}

std::vector<PeerLinks::Attempt> PeerLinks::TakeAttempts(absl::Time now) {
  std::vector<Attempt> attempts;
  if (now < due_at_) return attempts;
  // Computes due_at() anew from all links.
  due_at_ = absl::InfiniteFuture();
  for (auto& [peer, link] : links_) {
    if (link.is_attempting()) Due(link.attempt_deadline);
    if (!link.is_unconnected()) continue;
    if (now < link.limits.deadline) Due(link.limits.deadline);
    if (!self_.has_value() || link.state == State::kLookingUp) continue;
    if (link.next_attempt_at > now) {
      Due(link.next_attempt_at);
    } else {
      link.attempted = true;
      attempts.push_back({peer, link.address});
    }
  }
  return attempts;
}

void PeerLinks::OnLookingUp(PeerId peer) {
  Link& link = links_.at(peer);
  link.state = State::kLookingUp;
  // The owner asks for a name when it has dialled all addresses of the name.
  // The flag can be true even then: links share the addresses of a name, and
  // another link may have dialled the last one. If the flag stayed true, this
  // link would not pause after an error of the name servers.
  link.has_more_addresses = false;
}

void PeerLinks::OnLookedUp(const std::string& address,
                           const absl::Status& result, absl::Time now) {
  for (auto& [peer, link] : links_) {
    if (link.state != State::kLookingUp || link.address != address) continue;
    if (result.ok()) {
      link.state = State::kPausing;
    } else {
      Retry(link, result, now);
    }
    due_at_ = absl::InfinitePast();
  }
}

void PeerLinks::OnNoSocket(PeerId peer, const absl::Status& reason,
                           absl::Time now) {
  Link& link = links_.at(peer);
  // Pauses before the next address: without a pause, the next attempt would
  // hardly get a socket either.
  link.has_more_addresses = false;
  Retry(link, reason, now);
}

void PeerLinks::OnDialling(PeerId peer, Connection* connection,
                           bool has_more_addresses, absl::Time now) {
  Link& link = links_.at(peer);
  link.state = State::kDialling;
  link.connection = connection;
  link.has_more_addresses = has_more_addresses;
  link.attempt_begun = now;
  LimitAttempt(link, std::min(handshake_timeout_, link.limits.unreachable_max));
}

// Until TCP connects, unreachable_max, which may be short, limits the attempt,
// too. From here on, only the handshake timeout and the link's deadline do.
absl::StatusOr<PeerLinks::Greeting> PeerLinks::Greet(PeerId peer) {
  Link& link = links_.at(peer);
  link.NoteReached();
  link.state = State::kGreeting;
  LimitAttempt(link, handshake_timeout_);
  const auto member = roster_.find(peer);
  if (member == roster_.end()) {
    return UnavailableError("the peer has no place in the job yet");
  }
  Greeting greeting = {{peer, member->second}, *self_};
  greeting.hello.intended = peer;
  return greeting;
}

absl::Status PeerLinks::CheckAnswer(PeerId peer, const Hello& theirs) const {
  if (theirs.self != peer) return WrongPeer(peer, theirs.self);
  return CheckHello(*self_, theirs, roster_);
}

std::optional<PeerLinks::Loss> PeerLinks::OnAttemptFailed(
    PeerId peer, const Connection* connection, const absl::Status& reason,
    absl::Time now) {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.connection != connection) {
    return std::nullopt;
  }
  if (!absl::IsUnavailable(reason)) return GiveUp(peer, found->second, reason);
  Retry(found->second, reason, now);
  return std::nullopt;
}

void PeerLinks::LimitAttempt(Link& link, absl::Duration timeout) {
  link.attempt_deadline = std::min(
      link.attempt_begun + timeout,
      std::max(link.limits.deadline, link.attempt_begun + kAttemptMin));
  Due(link.attempt_deadline);
}

// An attempt counts as unreachable if TCP did not connect (kDialling), or if no
// socket could be made (kPausing). In kGreeting a process was reached. In
// kLookingUp the name server has failed, which says nothing about the peer.
void PeerLinks::Retry(Link& link, const absl::Status& reason, absl::Time now) {
  if (link.state == State::kDialling || link.state == State::kPausing) {
    link.unreachable_since = std::min(link.unreachable_since, now);
    link.unreachable_for = now - link.unreachable_since;
  }
  link.state = State::kPausing;
  link.connection = nullptr;
  link.last_error = std::string(reason.message());
  link.next_attempt_at =
      link.has_more_addresses ? absl::InfinitePast() : now + link.backoff;
  link.backoff = std::min(link.backoff * 2, kBackoffMax);
  Due(link.is_unreachable() ? now : link.next_attempt_at);
}

PeerLinks::Loss PeerLinks::GiveUp(PeerId peer, Link& link,
                                  const absl::Status& reason) {
  Loss loss = {peer,
               Prefixed(reason, "cannot connect to ", link.address, ": ")};
  Reset(link);
  return loss;
}

absl::Status PeerLinks::CheckPreamble(const Preamble& preamble) const {
  if (!self_.has_value()) {
    return UnavailableError(
        NotReadyReason("the receiver has no place in the job yet"));
  }
  if (preamble.intended != self_->self) {
    return WrongPeer(preamble.intended, self_->self);
  }
  // Compares all bits at once, which takes the same time for any difference.
  // Otherwise a stranger could measure the time and guess the token byte by
  // byte.
  if ((preamble.token ^ self_->incarnation) != 0) {
    return UnavailableError(
        NotReadyReason("the token of the dialler is for another process"));
  }
  return absl::OkStatus();
}

absl::Status PeerLinks::Admit(const Hello& theirs, const std::string& address) {
  if (stopped_) {
    return UnavailableError(NotReadyReason("the receiver is shutting down"));
  }
  NEREUS_TRY(ComeAgain(CheckHello(*self_, theirs, roster_)));
  Link& link = links_[theirs.self];
  if (link.state == State::kOpen) {
    if (link.connection->HasEnded()) {
      return UnavailableError(NotReadyReason(
          "the receiver has not finished the last connection yet"));
    }
    return AlreadyExistsError("handshake: ", PeerName(theirs.self),
                              " is connected to ", PeerName(self_->self),
                              " already, from ", link.connection->address(),
                              "; this one comes from ", address);
  }
  // The peer's connection came first, so this side's attempt ends. If the
  // peer's connection fails after all, this side dials again.
  if (link.is_attempting()) {
    link.connection->Close();
    link.connection = nullptr;
    link.state = State::kPausing;
    due_at_ = absl::InfinitePast();
  }
  return absl::OkStatus();
}

void PeerLinks::OnOpen(PeerId peer, Connection* connection) {
  Link& link = links_[peer];
  link.NoteReached();
  link.state = State::kOpen;
  link.connection = connection;
  for (Frame& frame : std::exchange(link.waiting, {})) {
    connection->Send(std::move(frame));
  }
}

bool PeerLinks::OnLost(PeerId peer, const Connection* connection) {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.connection != connection) {
    return false;
  }
  Reset(found->second);
  return true;
}

void PeerLinks::Reset(Link& link) {
  link.state = State::kIdle;
  link.unreachable_since = absl::InfiniteFuture();
  link.unreachable_for = absl::ZeroDuration();
  link.connection = nullptr;
  std::exchange(link.waiting, {}).clear();
}

}  // namespace nereus
