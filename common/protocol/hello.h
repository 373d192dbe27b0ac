#ifndef NEREUS_COMMON_PROTOCOL_HELLO_H_
#define NEREUS_COMMON_PROTOCOL_HELLO_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/protocol/peer.h"

namespace nereus {

// The first frame on every data connection, both ways.
struct Hello {
  uint32_t protocol_version = 0;
  std::string build;  // For messages; may differ.
  uint64_t job = 0;
  uint64_t epoch = 0;
  uint64_t model_signature = 0;
  PeerId self;      // Who sends this.
  PeerId intended;  // Whom it believes it is talking to.
};

// How many of each there are, for range checks.
struct JobShape {
  int workers = 0;
  int shards = 0;
};

// OK if the process that is `ours` may exchange frames with the one that sent
// `theirs`. Errors: kFailedPrecondition, naming the field and both values.
absl::Status CheckHello(const Hello& ours, const Hello& theirs,
                        const JobShape& shape);

}  // namespace nereus

#endif  // NEREUS_COMMON_PROTOCOL_HELLO_H_
