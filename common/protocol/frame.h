#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/plan/wire_type.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// The data plane speaks in frames: a fixed header and a payload by reference.
// docs/wire_format.md has the bytes.

inline constexpr int64_t kFrameHeaderBytes = 64;

// A payload fits a scratch that stays in the L2 cache: received whole, its
// checksum verified, then touched once by arithmetic.
inline constexpr int64_t kFramePayloadBytesMax = 256 * 1024;
inline constexpr int64_t kMessageBytesMax =
    kFrameHeaderBytes + kFramePayloadBytesMax;
inline constexpr int64_t kFrameElementsMax =
    kFramePayloadBytesMax / static_cast<int64_t>(sizeof(float));

enum class FrameKind : uint8_t {
  kHello = 1,         // First on a connection, both ways: who I am (hello.h).
  kRefusal = 2,       // Last on a connection: why it ends, as text.
  kContribution = 3,  // Worker -> shard: part of a dense gradient.
  kResult = 4,        // Shard -> worker: part of what a round came to.
  kPull = 5,          // Worker -> shard, or worker that owns the layer: send
                      // me its values as of this round.
  kFactors = 6,       // Worker -> worker: part of a sufficient factor.
  kPullRound = 7,     // Worker -> worker: send me all that this round came to:
                      // factors, or means.
  kOwned = 8,         // Worker -> shard: part of a layer that workers own, as
                      // of a round that a checkpoint is made of.
  kAggregate = 9,     // Server -> copy: part of what a round's contributions
                      // came to: the mean, or the initial parameters.
  kCopy = 10,         // Server -> copy: part of a chunk, as of this round.
  kHave = 11,         // Copy -> server: I have the chunk with all rounds before
                      // this one.
  kVote = 12,         // Worker -> server: whether its gradients of this step
                      // are fit to use.
  kVerdict = 13,      // Server -> worker: whether the step is skipped.
                      // Server -> copy: this round of this chunk is.
  kSum = 14,          // Worker -> the next on the ring: part of the sum of the
                      // gradients up to this worker's.
  kMean = 15,         // The same: part of the mean of all.
  kProbe = 16,        // Worker -> server: measures the link. Server -> worker:
                      // all frames of this train (round) are there.
};

absl::string_view FrameKindName(FrameKind kind);

// The state before round 0: worker 0's initial parameters, which the shards
// take as they are.
inline constexpr int64_t kInitialRound = -1;

// FrameHeader::part of kFactors: which matrix of the pair.
inline constexpr uint8_t kOutputGradientMatrix = 0;
inline constexpr uint8_t kInputMatrix = 1;

// FrameHeader::part of all other values: the parameters or gradient; parts 1,
// 2, ... are the optimizer's state, an array of as many values each, and, last
// in kCopy, the mean gradient of the round if workers run the optimizer.
inline constexpr uint8_t kValuesPart = 0;

// The same of kContribution and kAggregate in a sparse job
// (JobOptions::sparsity): the block was held back in the rounds before, so its
// values have their momentum in them.
inline constexpr uint8_t kResumedPart = 1;

// The same of kProbe: more frames of the train follow, or none.
inline constexpr uint8_t kMoreFollow = 0;
inline constexpr uint8_t kLastOfTrain = 1;

// The same of kVote and kVerdict.
inline constexpr uint8_t kGood = 0;
inline constexpr uint8_t kSkipped = 1;

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  WireType wire = WireType::kNone;
  uint64_t job = 0;    // The job's id, drawn by its coordinator.
  uint64_t epoch = 0;  // Version of the membership.
  uint32_t layer = 0;  // In forward order.
  // Within the layer. kFactors: of the worker at which position. kSum, kMean:
  // the segment.
  uint32_t chunk = 0;
  uint8_t part = 0;  // See above.
  // Of kFloat16: the payload's values are to be multiplied by 2 to this; else
  // 0. Whoever encodes the payload fills it in.
  int8_t exponent = 0;
  // Of kContribution and kAggregate in a sparse round: how many frames of the
  // chunk there are in it; 0, with an empty payload: none. Else 0: all.
  uint16_t frames = 0;
  int64_t round = 0;  // Of the layer; kInitialRound for initial parameters.
  PeerId sender;
  // First element of this payload, from the start of the chunk, segment or
  // (kFactors) matrix; where a frame of its FrameGrid begins.
  uint32_t offset = 0;
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // CRC-32C; transports fill it in and check it.

  bool operator==(const FrameHeader&) const = default;
};

struct Frame {
  FrameHeader header;
  // header.payload_bytes long on the wire. Between machines and drivers, always
  // float32 (common/driver/wire_values.h).
  Buffer payload;
  // Not on the wire. Frames of a lower priority value go first (SendQueue).
  // Fused ones share a message with others that wait for the same peer, as long
  // as it has at most kMessageBytesMax.
  uint32_t priority = 0;
  bool fused = false;
};

// Writes `header` into `bytes`, kFrameHeaderBytes long.
void EncodeFrameHeader(const FrameHeader& header, uint8_t* bytes);

// Reads a header: exactly kFrameHeaderBytes of hostile input. What comes back
// has a known kind and wire type, a sender and an exponent in range, and a
// payload of at most kFramePayloadBytesMax; whether it makes sense is the
// machine's to say.
// Errors: kInvalidArgument, with the field and its value.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes);

// OK if `payload` is what the header says: length and checksum.
absl::Status CheckPayload(const FrameHeader& header, const Buffer& payload);

// "contribution layer=3 chunk=0 part=0 round=12 offset=65536 bytes=262144 from
// worker 1".
std::string DescribeFrame(const FrameHeader& header);

// Returns the error that refuses a frame: kInvalidArgument, "DESCRIPTION: WHY".
absl::Status RefuseFrame(const FrameHeader& header, absl::string_view why);

// How values are cut into frames: at multiples of kFrameElementsMax, or at the
// boundaries of blocks that go on from one chunk and layer to the next
// (JobOptions::sparsity).
class FrameGrid {
 public:
  // Of `elements` values, in frames of `length`; the first one is shorter by
  // `skipped`. REQUIRES: 0 <= skipped < length <= kFrameElementsMax.
  constexpr explicit FrameGrid(int64_t elements,
                               int64_t length = kFrameElementsMax,
                               int64_t skipped = 0)
      : elements_(elements), length_(length), skipped_(skipped) {}

  constexpr int64_t elements() const { return elements_; }
  constexpr int64_t length() const { return length_; }
  constexpr int64_t skipped() const { return skipped_; }
  constexpr int64_t Count() const {
    return (elements_ + skipped_ + length_ - 1) / length_;
  }
  // The first value of frame `index`, and how many it has.
  constexpr int64_t Offset(int64_t index) const {
    return std::clamp<int64_t>(index * length_ - skipped_, 0, elements_);
  }
  constexpr int64_t Length(int64_t index) const {
    return Offset(index + 1) - Offset(index);
  }
  // The frame that has value `offset`.
  constexpr int64_t IndexOf(int64_t offset) const {
    return (offset + skipped_) / length_;
  }

 private:
  int64_t elements_;
  int64_t length_;
  int64_t skipped_;
};

// How many frames of kFrameElementsMax carry `elements` values.
constexpr int64_t FrameCount(int64_t elements) {
  return FrameGrid(elements).Count();
}

// How long the values of a frame that has some are as float32.
constexpr int64_t FloatBytes(const FrameHeader& header) {
  return header.payload_bytes / WireBytes(header.wire) *
         static_cast<int64_t>(sizeof(float));
}

// Checks a header's offset and length against the frames of `grid`, and returns
// the frame's index among them. Errors: kInvalidArgument, with both values.
absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                   const FrameGrid& grid);
inline absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                          int64_t elements) {
  return FrameIndex(header, FrameGrid(elements));
}

}  // namespace nereus
