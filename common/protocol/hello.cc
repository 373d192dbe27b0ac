#include "common/protocol/hello.h"

#include "common/base/status.h"

namespace nereus {
namespace {

// Returns the error for a field that differs but must be equal at both ends.
// The error names both builds, because the usual cause is that the two
// processes run different builds.
template <typename T>
absl::Status Mismatch(absl::string_view field, const Hello& ours,
                      const Hello& theirs, const T& our_value,
                      const T& their_value) {
  return FailedPreconditionError(
      "handshake: ", field, " differs: ", PeerName(theirs.self), " (build ",
      theirs.build, ") has ", their_value, ", ", PeerName(ours.self),
      " (build ", ours.build, ") has ", our_value);
}

}  // namespace

absl::Status CheckHello(const Hello& ours, const Hello& theirs,
                        const Roster& roster) {
  if (theirs.protocol_version != ours.protocol_version) {
    return Mismatch("protocol version", ours, theirs, ours.protocol_version,
                    theirs.protocol_version);
  }
  if (theirs.job != ours.job) {
    return Mismatch("job", ours, theirs, ours.job, theirs.job);
  }
  if (theirs.intended != ours.self) {
    return Mismatch("the receiver", ours, theirs, PeerName(ours.self),
                    PeerName(theirs.intended));
  }
  // Members enter an epoch one after the other. So a difference of epochs goes
  // away by itself, and with it one of the signatures: an epoch can have other
  // rows of layers than the epoch before.
  if (theirs.epoch != ours.epoch) {
    return UnavailableError("handshake: ", PeerName(theirs.self),
                            " is in epoch ", theirs.epoch, ", ",
                            PeerName(ours.self), " in epoch ", ours.epoch);
  }
  if (theirs.model_signature != ours.model_signature) {
    return Mismatch("model signature", ours, theirs, ours.model_signature,
                    theirs.model_signature);
  }
  const auto member = roster.find(theirs.self);
  if (member == roster.end() || theirs.self == ours.self) {
    return FailedPreconditionError("handshake: ", PeerName(ours.self),
                                   " has no peer ", PeerName(theirs.self),
                                   " in epoch ", ours.epoch);
  }
  // A process that counts as dead may still run, for example if it had lost its
  // network. The coordinator has replaced this process, and its frames must not
  // count.
  if (member->second != theirs.incarnation) {
    // The text does not have the incarnations: a process that knows one could
    // pass for the member.
    return FailedPreconditionError("handshake: another process is ",
                                   PeerName(theirs.self), " now");
  }
  return absl::OkStatus();
}

}  // namespace nereus
