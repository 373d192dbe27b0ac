#include "common/transport/handshake.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "common/base/crc32c.h"
#include "common/base/status.h"
#include "common/messages/job_messages.h"
#include "proto/data.pb.h"

namespace nereus {
namespace {

constexpr size_t kBuildBytesMax = 256;

// Beginning of a reason that may pass (NotReadyReason).
constexpr absl::string_view kNotReady = "not ready";

// First bytes that a gRPC client sends. A user may have given it the data port
// by mistake.
constexpr char kHttp2Preface[] = "PRI * HTTP/2.0";

// First eight bytes of a preamble; the eighth is the version.
constexpr uint8_t kPreambleMagic[] = {'N', 'E', 'R', 'E', 'U', 'S', 0, 1};
// Offsets of the preamble's fields in bytes. All bytes between the fields are
// 0.
constexpr size_t kPreambleRoleAt = 8;
constexpr size_t kPreambleRankAt = 12;
constexpr size_t kPreambleTokenAt = 16;
static_assert(kPreambleTokenAt + sizeof(uint64_t) == kPreambleBytes);

// Returns a frame of the handshake with `text` as its payload.
Frame TextFrame(FrameKind kind, PeerId sender, const std::string& text) {
  Frame frame;
  frame.header.kind = kind;
  frame.header.sender = sender;
  frame.payload = Buffer::Allocate(std::ssize(text));
  std::memcpy(frame.payload.data(), text.data(), text.size());
  frame.header.payload_bytes = static_cast<uint32_t>(text.size());
  frame.header.payload_crc = Crc32c(text.data(), text.size());
  return frame;
}

// Reads a peer from the field `field` of a hello. Errors have the field's name.
absl::StatusOr<PeerId> ReadPeer(absl::string_view field,
                                const v1::Member& message) {
  absl::StatusOr<PeerId> peer = FromProto(message);
  if (peer.ok()) return peer;
  return InvalidArgumentError("hello: ", field, ": ", peer.status().message());
}

// Makes text of another process safe to print: cuts it to `bytes_max` bytes and
// replaces all but printable ASCII characters by '?'. Control characters could
// break a log line or a terminal, and the cut could split a character of
// several bytes.
std::string Printable(absl::string_view text, size_t bytes_max) {
  std::string printable(text.substr(0, bytes_max));
  for (char& c : printable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return printable;
}

absl::string_view PayloadText(const Frame& frame) {
  return absl::string_view(reinterpret_cast<const char*>(frame.payload.data()),
                           static_cast<size_t>(frame.payload.bytes()));
}

}  // namespace

PreambleBytes EncodePreamble(const Preamble& preamble) {
  PreambleBytes bytes = {};
  std::memcpy(bytes.data(), kPreambleMagic, sizeof(kPreambleMagic));
  bytes[kPreambleRoleAt] = static_cast<uint8_t>(preamble.intended.role);
  std::memcpy(bytes.data() + kPreambleRankAt, &preamble.intended.rank,
              sizeof(preamble.intended.rank));
  std::memcpy(bytes.data() + kPreambleTokenAt, &preamble.token,
              sizeof(preamble.token));
  return bytes;
}

absl::StatusOr<Preamble> DecodePreamble(const PreambleBytes& bytes) {
  Preamble preamble;
  std::memcpy(&preamble.intended.rank, bytes.data() + kPreambleRankAt,
              sizeof(preamble.intended.rank));
  std::memcpy(&preamble.token, bytes.data() + kPreambleTokenAt,
              sizeof(preamble.token));
  preamble.intended.role = static_cast<Role>(bytes[kPreambleRoleAt]);
  const bool known = preamble.intended.role == Role::kWorker ||
                     preamble.intended.role == Role::kShard;
  const bool in_range =
      preamble.intended.rank >= 0 && preamble.intended.rank < kRanksMax;
  if (std::memcmp(bytes.data(), kHttp2Preface, sizeof(kHttp2Preface) - 1) ==
      0) {
    return InvalidArgumentError(
        "handshake: a gRPC client has connected to this data port; control "
        "calls go to the --control-port");
  }
  // Encodes the fields again and compares all bytes: this finds a wrong value
  // in any byte outside of the fields.
  if (known && in_range && EncodePreamble(preamble) == bytes) return preamble;
  return InvalidArgumentError(
      "handshake: the first bytes are not those of a Nereus connection of this "
      "version");
}

Frame HelloFrame(const Hello& hello) {
  v1::DataHello message;
  message.set_protocol_version(hello.protocol_version);
  message.set_build(Printable(hello.build, kBuildBytesMax));
  message.set_job(hello.job);
  message.set_epoch(hello.epoch);
  message.set_model_signature(hello.model_signature);
  *message.mutable_self() = ToProto(hello.self);
  message.set_incarnation(hello.incarnation);
  *message.mutable_intended() = ToProto(hello.intended);
  if (hello.shared_memory.has_value()) {
    v1::SharedMemory& shared = *message.mutable_shared_memory();
    shared.set_process(hello.shared_memory->process);
    shared.set_file(hello.shared_memory->descriptor);
    shared.set_token(hello.shared_memory->token);
  }
  Frame frame =
      TextFrame(FrameKind::kHello, hello.self, message.SerializeAsString());
  frame.header.job = hello.job;
  frame.header.epoch = hello.epoch;
  return frame;
}

absl::StatusOr<Hello> ReadHello(const Frame& frame) {
  if (frame.header.kind != FrameKind::kHello) {
    return InvalidArgumentError(
        "a connection must open with a hello, not with ",
        DescribeFrame(frame.header));
  }
  if (frame.payload.bytes() > kHelloBytesMax) {
    return InvalidArgumentError("hello: ", frame.payload.bytes(),
                                " bytes, at most ", kHelloBytesMax,
                                " are allowed");
  }
  v1::DataHello message;
  if (!message.ParseFromArray(frame.payload.data(),
                              static_cast<int>(frame.payload.bytes()))) {
    return InvalidArgumentError("hello: ", frame.payload.bytes(),
                                " bytes that are not a DataHello message");
  }
  Hello hello;
  hello.protocol_version = message.protocol_version();
  hello.build = Printable(message.build(), kBuildBytesMax);
  hello.job = message.job();
  hello.epoch = message.epoch();
  hello.model_signature = message.model_signature();
  hello.incarnation = message.incarnation();
  hello.self = NEREUS_TRY(ReadPeer("self", message.self()));
  hello.intended = NEREUS_TRY(ReadPeer("intended", message.intended()));
  if (!message.has_shared_memory()) return hello;
  const v1::SharedMemory& shared = message.shared_memory();
  // No process and no descriptor has such a number.
  if (shared.process() < 1 || shared.file() < 0) {
    return InvalidArgumentError("hello: shared memory of process ",
                                shared.process(), ", file ", shared.file());
  }
  hello.shared_memory = {shared.process(), shared.file(), shared.token()};
  return hello;
}

Frame RefusalFrame(PeerId self, absl::string_view reason) {
  return TextFrame(FrameKind::kRefusal, self,
                   std::string(reason.substr(0, kRefusalBytesMax)));
}

Frame GoodbyeFrame(PeerId self) { return RefusalFrame(self, ""); }

std::string ReadRefusal(const Frame& frame) {
  return Printable(PayloadText(frame), kRefusalBytesMax);
}

std::string NotReadyReason(absl::string_view why) {
  return absl::StrCat(kNotReady, ": ", why);
}

absl::Status RefusalStatus(const std::string& reason) {
  if (reason.empty()) return absl::OkStatus();
  return absl::StartsWith(reason, kNotReady) ? UnavailableError(reason)
                                             : FailedPreconditionError(reason);
}

}  // namespace nereus
