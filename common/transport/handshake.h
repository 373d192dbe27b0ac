#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// The frames that open and close a data connection, as bytes: proto/data.proto
// has the contract. Pure; every transport that crosses processes uses it.

// Longest payloads; longer texts are cut by whoever writes them.
inline constexpr int64_t kHelloBytesMax = 1024;
inline constexpr int64_t kRefusalBytesMax = 2048;

// What a connecting socket sends before any frame: whom it means, and that
// one's incarnation, which is known to members of the job alone. 24 bytes:
// docs/wire_format.md.
struct Preamble {
  PeerId intended;
  uint64_t token = 0;

  bool operator==(const Preamble&) const = default;
};
inline constexpr size_t kPreambleBytes = 24;
using PreambleBytes = std::array<uint8_t, kPreambleBytes>;
PreambleBytes EncodePreamble(const Preamble& preamble);
// From a stranger. Errors: kInvalidArgument, this is not one.
absl::StatusOr<Preamble> DecodePreamble(const PreambleBytes& bytes);

// The frame that introduces `hello.self`, checksum included.
Frame HelloFrame(const Hello& hello);

// Reads what HelloFrame wrote, from a stranger. Whether the hello is acceptable
// is CheckHello's to say. Errors: kInvalidArgument, not a hello, or one with a
// field that no sender of ours would write.
absl::StatusOr<Hello> ReadHello(const Frame& frame);

// The last frame on a connection that `self` ends because of `reason`, checksum
// included. Whoever gets it hangs up.
Frame RefusalFrame(PeerId self, absl::string_view reason);

// The last frame on a connection that `self` ends because it is done: a refusal
// without a reason.
Frame GoodbyeFrame(PeerId self);

// The reason in a frame of kind refusal, fit for one line of a log; empty in a
// goodbye.
std::string ReadRefusal(const Frame& frame);

// A refusal with this reason is for now only: the connecting side tries again.
std::string NotReadyReason(absl::string_view why);

// What a peer's reason means to this side: OK for a goodbye, kUnavailable for
// "not ready", else kFailedPrecondition.
absl::Status RefusalStatus(const std::string& reason);

}  // namespace nereus
