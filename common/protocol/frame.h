#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/wire_type.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Frames: the unit in which gradients and parameters travel between members. A
// frame is a header of fixed length and a payload that is held by reference.
// docs/wire_format.md has the layout byte by byte.

// Length of a header on the wire.
inline constexpr int64_t kFrameHeaderBytes = 64;

// Longest payload. A scratch of this size stays in the L2 cache: a payload is
// received whole, its checksum is verified, and arithmetic then reads it once,
// all without another trip to main memory.
inline constexpr int64_t kFramePayloadBytesMax = 256 * 1024;
// Number of float32 values in the longest payload.
inline constexpr int64_t kFrameElementsMax =
    kFramePayloadBytesMax / static_cast<int64_t>(sizeof(float));

// Meaning of a frame. The numbers are on the wire: a number is never used again
// for another kind. Values "as of a round" are the state after that round.
enum class FrameKind : uint8_t {
  // First frame on a connection, in both directions: the sender introduces
  // itself (hello.h).
  kHello = 1,
  // Last frame on a connection: the reason why it ends, as text.
  kRefusal = 2,
  // Worker to server: part of the sum of its host's gradients; in round
  // kInitialRound, part of worker 0's initial parameters.
  kContribution = 3,
  // Server to worker: part of a round's result. Worker to worker: part of a
  // worker-owned layer, for a worker that joins.
  kResult = 4,
  // Worker to server: request for the chunk as of this round. It asks for the
  // first values; in an epoch after the first for a result that the worker may
  // have missed; with Overlap::kDecoupled for each round's result. Worker to
  // worker: request for the layer as of this round, to the donor or, with
  // Overlap::kDecoupled, to a carrier on the same host.
  kPull = 5,
  // Worker to worker: part of a sufficient factor.
  kFactors = 6,
  // Worker to worker: request for the whole memory of this round. Sent to the
  // worker that FinishedRound names, which answers with kFinished.
  kPullRound = 7,
  // Worker to server: part of a worker-owned layer, as of a round that is saved
  // (Job::IsSaved), or of the job's last round (SaveLast).
  kOwned = 8,
  // Primary to backup: part of the mean of a round's contributions; in round
  // kInitialRound, part of the initial parameters.
  kAggregate = 9,
  // Primary to backup: part of a chunk as of this round.
  kCopy = 10,
  // Backup to primary: the backup has the chunk with all rounds before this
  // round.
  kHave = 11,
  // Worker to server: tells whether its gradients of this step may be used.
  kVote = 12,
  // Server to worker: tells whether the step is skipped. Primary to backup:
  // this round of this chunk is skipped.
  kVerdict = 13,
  // Carrier to the carrier on the next host: part of the sum of the gradients
  // so far, those of the sender's host included.
  kSum = 14,
  // Carrier to the carrier on the next host: part of the mean of all gradients.
  kMean = 15,
  // Worker to server: a frame of a train that measures the link. Server to
  // worker: the whole train has arrived. `round` is the train's number.
  kProbe = 16,
  // Worker to worker: part of the memory of a finished round, for a worker that
  // asked with kPullRound.
  kFinished = 17,
  // Worker to the carrier of its host: part of its own gradient of a unit.
  kLocal = 18,
  // Carrier to the other workers of its host: part of the outcome of a unit.
  // Worker to the other workers of its host: part of a product of factors.
  kOutcome = 19,
};

// Returns the name of `kind` in messages: "contribution"; "unknown" for a
// number that is not a kind.
absl::string_view FrameKindName(FrameKind kind);

// Round that stands for the state before round 0: worker 0's initial
// parameters, which the shards take as they are. In a field that may have no
// round it means none.
inline constexpr int64_t kInitialRound = -1;

// FrameHeader::part of kFactors, and of kOutcome of a layer that goes by
// factors: which of the two factors the frame is part of. kProductPart, only
// with kOutcome: the frame is part of the product of the factors.
inline constexpr uint8_t kOutputGradientMatrix = 0;
inline constexpr uint8_t kInputMatrix = 1;
inline constexpr uint8_t kProductPart = 2;

// FrameHeader::part of other frames with values, except kResumedPart below.
// kValuesPart: the frame has parameters or a gradient. Parts 1, 2, ...: it has
// values of the first, second, ... array of optimizer state; each array is as
// long as the parameters. In kCopy one more part follows if workers run the
// optimizer: the mean gradient of the round.
inline constexpr uint8_t kValuesPart = 0;

// FrameHeader::part of kContribution, kAggregate, and kLocal to the carrier of
// a chunk, in a sparse job (SparsityOptions): the block was held back in
// earlier rounds, so its values already contain their momentum
// (AddBlockUpdate).
inline constexpr uint8_t kResumedPart = 1;

// FrameHeader::part of kProbe: more frames of the train follow, or this frame
// is its last. A train is a run of frames that one measurement of a link sends.
inline constexpr uint8_t kMoreFollow = 0;
inline constexpr uint8_t kLastOfTrain = 1;

// FrameHeader::part of kVote and kVerdict: the step counts, or it is skipped.
inline constexpr uint8_t kGood = 0;
inline constexpr uint8_t kSkipped = 1;

// Header of a frame, in memory. A header from the network is checked twice:
// DecodeFrameHeader checks its form, and the machine compares it with the job.
struct FrameHeader {
  FrameKind kind = FrameKind::kHello;  // Meaning of the frame.
  // Number format of the payload's values; kNone for a frame without values.
  // Machines accept only the format that Job::WireOf returns.
  WireType wire = WireType::kNone;
  uint64_t job = 0;    // Id of the job, drawn by its coordinator.
  uint64_t epoch = 0;  // Epoch of the sender.
  uint32_t layer = 0;  // Index of the layer, in forward order.
  // Index of the chunk within the layer. kSum, kMean, and kLocal and kOutcome
  // of a ring: the segment. kFactors, and kOutcome of factors: seat of the
  // worker that made the values. kFinished: index of the buffer.
  uint32_t chunk = 0;
  // Meaning depends on the kind: see the constants above. 0 for kinds without
  // such a constant.
  uint8_t part = 0;
  // Exponent of a frame with WireType::kFloat16: a decoded value is its fp16
  // number times 2^exponent. 0 for other wire types. Set when the payload is
  // encoded.
  int8_t exponent = 0;
  // kContribution, kAggregate, and kLocal to the carrier of a chunk, in a
  // sparse round: number of the chunk's frames with values; 0 only in the frame
  // that says that none travels. Otherwise 0.
  uint16_t frames = 0;
  int64_t round = 0;  // Round of the layer; kVote and kVerdict: the step.
  PeerId sender;      // Member that sends the frame.
  // First element of the payload, counted from the start of the values that
  // FrameGrid cuts: a chunk, matrix, part of a product, segment (in a sparse
  // job: layer) or buffer. A frame of the grid begins there.
  uint32_t offset = 0;
  uint32_t payload_bytes = 0;  // Length of the payload as it travels.
  // CRC-32C of the payload; 0: not computed yet, so the transport computes it.
  // TCP receivers check it; shared memory does not.
  uint32_t payload_crc = 0;

  bool operator==(const FrameHeader&) const = default;
};

// A frame in memory. Copying it is cheap: the payload is a reference.
struct Frame {
  FrameHeader header;  // Description of the payload.
  // Values of the frame; on the wire they have header.payload_bytes bytes. A
  // machine that sends a frame gives float32 values. A machine that receives a
  // frame gets float32 values if they land in a place; in scratch it gets the
  // bytes of the wire, which Accumulate decodes (common/protocol/outbox.h).
  Buffer payload;
  // Priority of sending: frames with lower values go first (SendQueue). Not on
  // the wire.
  uint32_t priority = 0;
  // True if the frame may share a message with other frames that wait for the
  // same peer. Only SimulatedNetwork, which models the cost of messages, reads
  // it: sockets always send together what waits. Not on the wire.
  bool fused = false;
};

// Writes `header` into `bytes`, which has room for kFrameHeaderBytes.
void EncodeFrameHeader(const FrameHeader& header, uint8_t* bytes);

// Reads a header from exactly kFrameHeaderBytes of untrusted input. The result
// has a known kind and wire type, a sender and an exponent in range, and a
// payload of at most kFramePayloadBytesMax. The machine then checks that it
// fits the job (CheckFrame).
//
// Errors: kInvalidArgument, with the field and its value: end the connection.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes);

// Returns OK if `payload` has the length and the checksum of the header.
// Errors: kInvalidArgument, with both values: end the connection.
absl::Status CheckPayload(const FrameHeader& header, const Buffer& payload);

// Returns the header for messages: "contribution layer=3 chunk=0 part=0
// round=12 offset=65536 bytes=262144 from worker 1".
std::string DescribeFrame(const FrameHeader& header);

// Returns the error that refuses a frame: kInvalidArgument, "DESCRIPTION: WHY".
// The parts of `why` are joined as by absl::StrCat.
template <typename... Parts>
absl::Status RefuseFrame(const FrameHeader& header, const Parts&... why) {
  return InvalidArgumentError(DescribeFrame(header), ": ", why...);
}

// Rule by which a run of values is cut into frames. Dense values are cut at
// multiples of kFrameElementsMax. In a sparse job, values are cut where blocks
// of the pool end, so that each frame lies in one block. A block may begin in
// the chunk before, so the first frame may be shorter.
//
// Example: 100 values, length 40, skipped 10 give frames of 30, 40 and 30
// values, at offsets 0, 30 and 70.
//
// A value type. Sender and receiver must make the same grid: the receiver
// refuses a frame that does not begin where a frame of its own grid begins.
class FrameGrid {
 public:
  // Makes the grid of `elements` values in frames of `length` values; the first
  // frame is shorter by `skipped`. REQUIRES: 0 <= skipped < length <=
  // kFrameElementsMax.
  constexpr explicit FrameGrid(int64_t elements,
                               int64_t length = kFrameElementsMax,
                               int64_t skipped = 0)
      : elements_(elements), length_(length), skipped_(skipped) {}

  constexpr int64_t elements() const { return elements_; }  // Number of values.
  // Number of values in a full frame.
  constexpr int64_t length() const { return length_; }
  // Number of values by which the first frame is shorter.
  constexpr int64_t skipped() const { return skipped_; }
  // Returns the number of frames; 0 if there are no values and none is skipped.
  constexpr int64_t Count() const {
    return (elements_ + skipped_ + length_ - 1) / length_;
  }
  // Offset returns the position of the first value of frame `index`. Length
  // returns the number of its values. The last frame may be shorter than the
  // others.
  constexpr int64_t Offset(int64_t index) const {
    return std::clamp<int64_t>(index * length_ - skipped_, 0, elements_);
  }
  constexpr int64_t Length(int64_t index) const {
    return Offset(index + 1) - Offset(index);
  }
  // Returns the index of the frame that contains value `offset`.
  constexpr int64_t IndexOf(int64_t offset) const {
    return (offset + skipped_) / length_;
  }

 private:
  int64_t elements_;  // Number of values.
  int64_t length_;    // Number of values in a full frame.
  int64_t skipped_;   // Number of values that the first frame lacks.
};

// Returns the number of frames that carry `elements` dense values.
constexpr int64_t FrameCount(int64_t elements) {
  return FrameGrid(elements).Count();
}

// Returns the bytes of the frame's values after they are decoded to float32.
// REQUIRES: header.wire is not kNone.
constexpr int64_t FloatBytes(const FrameHeader& header) {
  return header.payload_bytes / WireBytes(header.wire) *
         static_cast<int64_t>(sizeof(float));
}

// Returns the index of a frame in `grid`. Errors: kInvalidArgument if the
// header's offset or length is not that of a frame of the grid; the message has
// both values.
absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                   const FrameGrid& grid);
inline absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                          int64_t elements) {
  return FrameIndex(header, FrameGrid(elements));
}

}  // namespace nereus
