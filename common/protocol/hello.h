#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/protocol/peer.h"

namespace nereus {

// Memory for two processes on one host: where the one that has made it has it
// open, and what it begins with.
struct SharedMemoryOffer {
  int32_t process = 0;
  int32_t descriptor = 0;
  uint64_t token = 0;

  bool operator==(const SharedMemoryOffer&) const = default;
};

// The first frame on every data connection, both ways.
struct Hello {
  uint32_t protocol_version = 0;
  std::string build;  // For messages; may differ.
  uint64_t job = 0;
  uint64_t epoch = 0;
  uint64_t model_signature = 0;
  PeerId self;               // Who sends this.
  uint64_t incarnation = 0;  // Of the sender; unlike any other's with this id.
  PeerId intended;           // Whom it believes it is talking to.
  // Of the side that connects: what frames may go through instead. Of the
  // other one: the same, if they will.
  std::optional<SharedMemoryOffer> shared_memory;
};

// The members of an epoch, and their incarnations.
using Roster = std::map<PeerId, uint64_t>;

// OK if the process that is `ours` may exchange frames with the one that sent
// `theirs`. Errors: kFailedPrecondition, naming the field and both values;
// kUnavailable, they are in different epochs, and may be in the same one soon.
absl::Status CheckHello(const Hello& ours, const Hello& theirs,
                        const Roster& roster);

}  // namespace nereus
