#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/hello.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// The bytes that open and close a data connection. proto/data.proto has the
// contract, docs/wire_format.md the layout. Pure.
//
//   dialling side                        accepting side
//   preamble: intended peer, token ----> compares the token with its
//                                        incarnation
//   hello -----------------------------> CheckHello
//   CheckHello <------------------------ hello, or a refusal
//   frames <---------------------------> frames
//   goodbye or refusal <---------------> goodbye or refusal
//
// Functions that read or decode take bytes from any process, which may be
// hostile.

// Largest payloads of hellos and refusals. A longer reason is cut by the
// sender.
inline constexpr int64_t kHelloBytesMax = 1024;
inline constexpr int64_t kRefusalBytesMax = 2048;

// First bytes on a connection, before any frame. The dialling side sends the
// peer that it wants to reach, and the incarnation of that peer. Only members
// of the job know the incarnation, so other processes are refused here. A
// preamble has 24 bytes.
struct Preamble {
  PeerId intended;
  uint64_t token = 0;  // Incarnation of `intended`.

  bool operator==(const Preamble&) const = default;
};
inline constexpr size_t kPreambleBytes = 24;
using PreambleBytes = std::array<uint8_t, kPreambleBytes>;
PreambleBytes EncodePreamble(const Preamble& preamble);
// Decodes the bytes of EncodePreamble. Errors: kInvalidArgument, these bytes
// are no preamble of this version.
absl::StatusOr<Preamble> DecodePreamble(const PreambleBytes& bytes);

// Returns the frame that introduces `hello.self`, checksum included.
Frame HelloFrame(const Hello& hello);

// Decodes a frame of HelloFrame. Checks its form only: CheckHello compares it
// with the job. Errors: kInvalidArgument, the frame is no hello, or a field has
// a value that no Nereus process writes.
absl::StatusOr<Hello> ReadHello(const Frame& frame);

// Returns the last frame on a connection that `self` ends because of `reason`,
// checksum included. The receiver then closes it.
Frame RefusalFrame(PeerId self, absl::string_view reason);

// Returns the last frame on a connection that `self` ends because it is done: a
// refusal without a reason.
Frame GoodbyeFrame(PeerId self);

// Returns the reason in a frame of kind refusal, fit for one line of a log;
// empty for a goodbye.
std::string ReadRefusal(const Frame& frame);

// Returns the text of a refusal after which the dialling side tries again,
// because the reason may pass.
std::string NotReadyReason(absl::string_view why);

// Returns the status for the reason in a peer's refusal: OK for a goodbye,
// kUnavailable for NotReadyReason, else kFailedPrecondition.
absl::Status RefusalStatus(const std::string& reason);

}  // namespace nereus
