#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/protocol/peer.h"

namespace nereus {

// Offer of memory that two processes on one host use in place of the socket.
// The connecting side has made the memory; the other side opens it by the path
// /proc/PROCESS/fd/DESCRIPTOR.
struct SharedMemoryOffer {
  int32_t process = 0;     // Process id of the side that offers.
  int32_t descriptor = 0;  // File descriptor of the memory in that process.
  // Random number at the start of the memory. It shows that the opened file is
  // the offered one: the process id may mean another process in another
  // namespace.
  uint64_t token = 0;

  bool operator==(const SharedMemoryOffer&) const = default;
};

// First frame on every data connection, in both directions. Both ends compare
// the two hellos (CheckHello) before any other frame is read. Without this
// check, a process of another job, or a process that the coordinator has
// declared dead, could add gradients to a sum.
struct Hello {
  // Version of frames and messages (kProtocolVersion). Both ends must have the
  // same.
  uint32_t protocol_version = 0;
  std::string build;  // Build of the sender, for messages only; may differ.
  uint64_t job = 0;   // Id of the job; both ends must have the same.
  // Epoch that the sender is in. If the two epochs differ, the connection is
  // refused, and tried again later.
  uint64_t epoch = 0;
  // Hash of all layers (ModelSignature); both ends must have the same.
  uint64_t model_signature = 0;
  PeerId self;  // Sender of this hello.
  // Incarnation of the sender. No other process with the id `self` has it.
  uint64_t incarnation = 0;
  PeerId intended;  // Member that the sender means to reach.
  // From the connecting side: its offer of memory, if any. From the accepting
  // side: a copy of that offer if it accepts, else nothing.
  std::optional<SharedMemoryOffer> shared_memory;
};

// Members of an epoch, each with its incarnation.
using Roster = std::map<PeerId, uint64_t>;

// Returns OK if this process, described by `ours`, may exchange frames with the
// sender of `theirs`. `roster` lists the members of our epoch.
//
// Errors: kFailedPrecondition: the two processes can never exchange frames; the
// message names the field and both values. kUnavailable: they are in different
// epochs, and will soon be in the same epoch: try again.
absl::Status CheckHello(const Hello& ours, const Hello& theirs,
                        const Roster& roster);

}  // namespace nereus
