#include "common/protocol/frame.h"

#include <bit>
#include <cstring>

#include "common/base/crc32c.h"
#include "common/base/logging.h"
#include "common/base/names.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/compute/frame_halves.h"

// Encoding of frame headers, and checks of their form. Read EncodeFrameHeader
// and DecodeFrameHeader side by side. The constants k...At are the offsets of
// the fields. Store and Load copy each field and never use it in place, so the
// bytes of a header need no alignment.
//
// The header that DecodeFrameHeader reads comes from the network and may be
// hostile. It checks the length, the magic number, the checksum and the version
// first, and then field by field. The checksum comes before the version, so
// that a flipped bit is not reported as a wrong version.

namespace nereus {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian, and fields are copied as they are");

constexpr uint32_t kMagic = 0x3153524e;  // "NRS1", little-endian.
// Bit of the sender field that marks a server; the rest is the rank.
constexpr uint32_t kShardBit = uint32_t{1} << 31;

// Offsets of the fields. docs/wire_format.md has the same table.
constexpr int kMagicAt = 0;
constexpr int kVersionAt = 4;
constexpr int kKindAt = 5;
constexpr int kWireAt = 6;
constexpr int kPartAt = 7;
constexpr int kJobAt = 8;
constexpr int kEpochAt = 16;
constexpr int kLayerAt = 24;
constexpr int kChunkAt = 28;
constexpr int kRoundAt = 32;
constexpr int kSenderAt = 40;
constexpr int kOffsetAt = 44;
constexpr int kPayloadBytesAt = 48;
constexpr int kPayloadCrcAt = 52;
constexpr int kExponentAt = 56;
constexpr int kFramesAt = 58;
constexpr int kHeaderCrcAt = 60;

// Copies a field into the header.
template <typename T>
void Store(uint8_t* bytes, int at, T value) {
  std::memcpy(bytes + at, &value, sizeof(value));
}

// Copies a field out of the header.
template <typename T>
T Load(absl::Span<const uint8_t> bytes, int at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Returns the error for a field with a value that EncodeFrameHeader never
// writes.
absl::Status Bad(absl::string_view field, uint64_t found,
                 absl::string_view expected) {
  return InvalidArgumentError("frame header: ", field, " is ", found,
                              ", expected ", expected);
}

// True if `kind` is a value of FrameKind. No other number may be cast to
// FrameKind, because switches over kinds have no case for it.
bool KnownKind(uint8_t kind) {
  return kind >= static_cast<uint8_t>(FrameKind::kHello) &&
         kind <= static_cast<uint8_t>(FrameKind::kAlive);
}

constexpr Named<FrameKind> kKindNames[] = {
    {FrameKind::kHello, "hello"},
    {FrameKind::kRefusal, "refusal"},
    {FrameKind::kContribution, "contribution"},
    {FrameKind::kResult, "result"},
    {FrameKind::kPull, "pull"},
    {FrameKind::kFactors, "factors"},
    {FrameKind::kPullRound, "pull-round"},
    {FrameKind::kOwned, "owned"},
    {FrameKind::kAggregate, "aggregate"},
    {FrameKind::kCopy, "copy"},
    {FrameKind::kHave, "have"},
    {FrameKind::kVote, "vote"},
    {FrameKind::kVerdict, "verdict"},
    {FrameKind::kSum, "sum"},
    {FrameKind::kMean, "mean"},
    {FrameKind::kProbe, "probe"},
    {FrameKind::kFinished, "finished"},
    {FrameKind::kLocal, "local"},
    {FrameKind::kOutcome, "outcome"},
    {FrameKind::kAlive, "alive"}};

}  // namespace

absl::string_view FrameKindName(FrameKind kind) {
  return NameOf<kKindNames>(kind);
}

void EncodeFrameHeader(const FrameHeader& header, uint8_t* bytes) {
  std::memset(bytes, 0, kFrameHeaderBytes);
  Store(bytes, kMagicAt, kMagic);
  Store(bytes, kVersionAt, static_cast<uint8_t>(kProtocolVersion));
  Store(bytes, kKindAt, header.kind);
  Store(bytes, kWireAt, header.wire);
  Store(bytes, kPartAt, header.part);
  Store(bytes, kJobAt, header.job);
  Store(bytes, kEpochAt, header.epoch);
  Store(bytes, kLayerAt, header.layer);
  Store(bytes, kChunkAt, header.chunk);
  Store(bytes, kRoundAt, header.round);
  const uint32_t role = header.sender.role == Role::kShard ? kShardBit : 0;
  Store(bytes, kSenderAt, role | static_cast<uint32_t>(header.sender.rank));
  Store(bytes, kOffsetAt, header.offset);
  Store(bytes, kPayloadBytesAt, header.payload_bytes);
  Store(bytes, kPayloadCrcAt, header.payload_crc);
  Store(bytes, kExponentAt, static_cast<int16_t>(header.exponent));
  Store(bytes, kFramesAt, header.frames);
  Store(bytes, kHeaderCrcAt, Crc32c(bytes, kHeaderCrcAt));
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kFrameHeaderBytes) {
    return Bad("length", bytes.size(), absl::StrCat(kFrameHeaderBytes));
  }
  const auto magic = Load<uint32_t>(bytes, kMagicAt);
  if (magic != kMagic) return Bad("magic", magic, absl::StrCat(kMagic));
  const uint32_t crc = Crc32c(bytes.data(), kHeaderCrcAt);
  const auto stated_crc = Load<uint32_t>(bytes, kHeaderCrcAt);
  if (crc != stated_crc) return Bad("checksum", stated_crc, absl::StrCat(crc));
  const auto version = Load<uint8_t>(bytes, kVersionAt);
  if (version != kProtocolVersion) {
    return Bad("protocol version", version, absl::StrCat(kProtocolVersion));
  }
  const auto kind = Load<uint8_t>(bytes, kKindAt);
  if (!KnownKind(kind)) return Bad("kind", kind, "a known kind");
  const auto wire = Load<uint8_t>(bytes, kWireAt);
  if (wire > static_cast<uint8_t>(WireType::kFloat16)) {
    return Bad("wire type", wire, "a known wire type");
  }
  // Only fp16 frames have an exponent. In any other frame an exponent is an
  // error: if one receiver ignored the exponent and another one used it, their
  // sums would differ.
  const auto exponent = Load<int16_t>(bytes, kExponentAt);
  const bool scaled = wire == static_cast<uint8_t>(WireType::kFloat16);
  if (exponent < (scaled ? kHalfExponentMin : 0) ||
      exponent > (scaled ? kHalfExponentMax : 0)) {
    return InvalidArgumentError("frame header: exponent is ", exponent,
                                " with wire type ", wire);
  }

  FrameHeader header;
  header.kind = static_cast<FrameKind>(kind);
  header.wire = static_cast<WireType>(wire);
  header.part = Load<uint8_t>(bytes, kPartAt);
  header.job = Load<uint64_t>(bytes, kJobAt);
  header.epoch = Load<uint64_t>(bytes, kEpochAt);
  header.layer = Load<uint32_t>(bytes, kLayerAt);
  header.chunk = Load<uint32_t>(bytes, kChunkAt);
  header.round = Load<int64_t>(bytes, kRoundAt);
  const auto sender = Load<uint32_t>(bytes, kSenderAt);
  const uint32_t rank = sender & ~kShardBit;
  const bool shard = (sender & kShardBit) != 0;
  if (rank >= static_cast<uint32_t>(kRanksMax)) {
    return Bad("sender", rank, absl::StrCat("less than ", kRanksMax));
  }
  header.sender = {shard ? Role::kShard : Role::kWorker,
                   static_cast<int32_t>(rank)};
  header.offset = Load<uint32_t>(bytes, kOffsetAt);
  header.payload_bytes = Load<uint32_t>(bytes, kPayloadBytesAt);
  if (header.payload_bytes > kFramePayloadBytesMax) {
    return Bad("payload length", header.payload_bytes,
               absl::StrCat("at most ", kFramePayloadBytesMax));
  }
  header.payload_crc = Load<uint32_t>(bytes, kPayloadCrcAt);
  header.exponent = static_cast<int8_t>(exponent);
  header.frames = Load<uint16_t>(bytes, kFramesAt);
  return header;
}

absl::Status CheckPayload(const FrameHeader& header, const Buffer& payload) {
  if (payload.bytes() != header.payload_bytes) {
    return InvalidArgumentError(DescribeFrame(header), ": the payload has ",
                                payload.bytes(), " bytes, the header says ",
                                header.payload_bytes);
  }
  const uint32_t crc =
      Crc32c(payload.data(), static_cast<size_t>(payload.bytes()));
  if (crc != header.payload_crc) {
    return InvalidArgumentError(
        DescribeFrame(header), ": the payload's checksum is ", absl::Hex(crc),
        ", the header says ", absl::Hex(header.payload_crc));
  }
  return absl::OkStatus();
}

std::string DescribeFrame(const FrameHeader& header) {
  return absl::StrCat(FrameKindName(header.kind), " layer=", header.layer,
                      " chunk=", header.chunk, " part=", header.part,
                      " round=", header.round, " offset=", header.offset,
                      " bytes=", header.payload_bytes, " from ",
                      PeerName(header.sender));
}

absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                   const FrameGrid& grid) {
  const int64_t index = grid.IndexOf(header.offset);
  if (header.offset >= grid.elements() || grid.Offset(index) != header.offset) {
    return InvalidArgumentError(
        DescribeFrame(header), ": the offset must be ",
        grid.skipped() == 0 ? "" : "0 or ", "a multiple of ", grid.length(),
        grid.skipped() == 0 ? "" : absl::StrCat(" less ", grid.skipped()),
        " below ", grid.elements());
  }
  // The grid says which length the frame at this offset has. A frame of another
  // length is wrong, even if its values lie within the grid.
  const int64_t bytes = grid.Length(index) * WireBytes(header.wire);
  if (header.payload_bytes != bytes) {
    return InvalidArgumentError(DescribeFrame(header),
                                ": the payload must have ", bytes, " bytes");
  }
  return index;
}

}  // namespace nereus
