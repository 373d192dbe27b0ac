#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/protocol/peer.h"

namespace nereus {

// Offer of shared memory, through which two processes on one host send frames
// instead of through the socket. The process that dials makes the memory and
// the offer. The process that is dialled opens the file
// /proc/PROCESS/fd/DESCRIPTOR.
struct SharedMemoryOffer {
  int32_t process = 0;     // Process id of the process that dials.
  int32_t descriptor = 0;  // Its file descriptor of the memory.
  // Random number, which is also at the start of the memory. If the opened file
  // does not begin with this number, it is another file: the process id can
  // mean another process in the other side's namespace.
  uint64_t token = 0;

  bool operator==(const SharedMemoryOffer&) const = default;
};

// First frame on every data connection, in both directions. Each end compares
// the other's hello with its own (CheckHello) before it reads any other frame.
// Without this check, a process of another job, or a process that counts as
// dead, could add gradients to a sum.
struct Hello {
  // Version of frames and messages (kProtocolVersion); must be equal at both
  // ends.
  uint32_t protocol_version = 0;
  std::string build;  // Build of the sender, for error messages only.
  uint64_t job = 0;   // Id of the job; must be equal at both ends.
  // Epoch that the sender is in. If the two epochs differ, the receiver refuses
  // the connection, and the process that dials tries again later.
  uint64_t epoch = 0;
  // Hash of all layers (ModelSignature); must be equal at both ends, if they
  // are in the same epoch.
  uint64_t model_signature = 0;
  PeerId self;  // Sender of this hello.
  // Incarnation of the sender. No other process with the id `self` has it.
  uint64_t incarnation = 0;
  PeerId intended;  // Member that the sender means to reach.
  // In the hello of the process that dials: its offer, or nothing. In the
  // answer: a copy of the offer if the sender of the answer accepts it, else
  // nothing.
  std::optional<SharedMemoryOffer> shared_memory;
};

// Members of an epoch, each with its incarnation.
using Roster = std::map<PeerId, uint64_t>;

// Returns OK if this process, which `ours` describes, may exchange frames with
// the sender of `theirs`. `roster` lists the members of this process's epoch.
//
// Errors: kFailedPrecondition, the two processes can never exchange frames; the
// message names the field and both values. kUnavailable, the two processes are
// in different epochs; try again, because they will soon be in the same epoch.
absl::Status CheckHello(const Hello& ours, const Hello& theirs,
                        const Roster& roster);

}  // namespace nereus
