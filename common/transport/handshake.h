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

// Bytes that open and close a data connection. proto/data.proto has the
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
// The bytes that DecodePreamble, ReadHello and ReadRefusal get may come from
// any process, even a hostile one.

// Largest payloads of hellos and refusals. The sender of a refusal cuts a
// longer reason.
inline constexpr int64_t kHelloBytesMax = 1024;
inline constexpr int64_t kRefusalBytesMax = 2048;

// First bytes on a connection, before any frame. The dialling side sends them:
// they name the peer that it wants to reach, and that peer's incarnation. Only
// members of the job know the incarnation, so the accepting side refuses all
// other processes here. A preamble has 24 bytes.
struct Preamble {
  PeerId intended;
  uint64_t token = 0;  // Incarnation of `intended`.

  bool operator==(const Preamble&) const = default;
};
inline constexpr size_t kPreambleBytes = 24;
using PreambleBytes = std::array<uint8_t, kPreambleBytes>;
PreambleBytes EncodePreamble(const Preamble& preamble);
// Decodes the bytes of EncodePreamble. Errors: kInvalidArgument, `bytes` are no
// preamble of this version.
absl::StatusOr<Preamble> DecodePreamble(const PreambleBytes& bytes);

// Returns the hello frame by which `hello.self` introduces itself. The header
// already has the payload's checksum.
Frame HelloFrame(const Hello& hello);

// Decodes a frame that HelloFrame has made. Checks only the form: CheckHello
// compares the values with those of the job. Errors: kInvalidArgument, the
// frame is no hello, or a field has a value that no Nereus process writes.
absl::StatusOr<Hello> ReadHello(const Frame& frame);

// Returns the last frame on a connection that `self` ends because of `reason`.
// The header already has the payload's checksum. The receiver of the frame
// closes the connection.
Frame RefusalFrame(PeerId self, absl::string_view reason);

// Returns the last frame on a connection that `self` ends because it shuts
// down: a refusal without a reason.
Frame GoodbyeFrame(PeerId self);

// Returns the reason in a frame of kind refusal, without characters that would
// break a log line. The reason is empty for a goodbye.
std::string ReadRefusal(const Frame& frame);

// Returns `why`, marked as a reason that may pass. After a refusal with this
// text, the dialling side tries again.
std::string NotReadyReason(absl::string_view why);

// Returns the status for the reason in a peer's refusal: OK for a goodbye,
// kUnavailable for a text of NotReadyReason, else kFailedPrecondition.
absl::Status RefusalStatus(const std::string& reason);

}  // namespace nereus
