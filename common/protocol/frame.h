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
// frame is a header of fixed length and a payload. In memory, a Frame refers to
// its payload and does not contain it. docs/wire_format.md has the layout byte
// by byte.

// Length of a header on the wire.
inline constexpr int64_t kFrameHeaderBytes = 64;

// Longest payload. The transport receives a payload whole into scratch and
// verifies its checksum; then the driver's arithmetic reads it once. Scratch of
// this size stays in the L2 cache meanwhile, so neither reads main memory.
inline constexpr int64_t kFramePayloadBytesMax = 256 * 1024;
// Number of float32 values in the longest payload.
inline constexpr int64_t kFrameElementsMax =
    kFramePayloadBytesMax / static_cast<int64_t>(sizeof(float));

// Meaning of a frame. The numbers travel in headers, so the number of a kind is
// never used again for another kind. Below, "this" round, layer or chunk is the
// one that the header names. Values "as of a round" are the values after that
// round's update.
enum class FrameKind : uint8_t {
  // First frame on a connection, in both directions: the sender introduces
  // itself (hello.h).
  kHello = 1,
  // Last frame on a connection: the reason why it ends, as text.
  kRefusal = 2,
  // Carrier to server: part of the sum of the gradients of the carrier's host.
  // In round kInitialRound, from the worker at position 0: part of its initial
  // parameters.
  kContribution = 3,
  // Server to worker: part of a round's result, which is the new parameters or,
  // if the callers run the optimizer, the mean gradient. Donor to joining
  // worker: part of a worker-owned layer.
  kResult = 4,
  // Worker to server: request for this chunk as of this round. A worker asks
  // for its first values and, after a change of epoch, for a result that it may
  // have missed. Joining worker to donor: request for this layer as of this
  // round.
  kPull = 5,
  // Worker to worker: part of a factor, one of the two matrices whose product
  // is the gradient; or part of the dense gradient, in place of the factors.
  kFactors = 6,
  // Worker to the source of a FinishedRound: request for the whole outcome of
  // this round, all factors or the mean. The source answers with kFinished.
  kPullRound = 7,
  // Worker to server: part of a worker-owned layer, as of a round that the
  // shards save (Job::IsSaved) or as of the job's last round (SaveLast).
  kOwned = 8,
  // Primary to backup: part of the mean of a round's contributions; in round
  // kInitialRound, part of the initial parameters.
  kAggregate = 9,
  // Primary to backup: part of the primary's values of a chunk, as of this
  // round.
  kCopy = 10,
  // Backup to primary: the backup has every round of the chunk before this
  // round. This round is open on the backup.
  kHave = 11,
  // Worker to every server: tells whether the worker's gradients of this step
  // may be used.
  kVote = 12,
  // Primary of shard 0 to worker: tells whether this step is skipped. Primary
  // to backup: this round of this chunk is skipped.
  kVerdict = 13,
  // On a ring, carrier to the carrier on the next host: part of the sum of the
  // gradients so far, which includes those of the sender's host.
  kSum = 14,
  // On a ring, carrier to the carrier on the next host: part of the mean of all
  // gradients.
  kMean = 15,
  // Worker to a server or to a mate: frame of a train. A train is a run of
  // frames that a worker sends to measure the link or the memory of its host.
  // Back to the worker: the whole train has arrived. `round` is the number of
  // the train.
  kProbe = 16,
  // Source to the worker that asked with kPullRound: part of the round's
  // outcome.
  kFinished = 17,
  // Worker to the carrier of a unit on its host: part of the worker's own
  // gradient of this unit.
  kLocal = 18,
  // Carrier to its mates: part of the outcome of a unit. Worker to its mates:
  // part of a product of factors.
  kOutcome = 19,
  // Either end to the other, about once a second if no other frame waits:
  // shows that the connection still carries frames. The transports send and
  // take it, and handlers never see it. Without payload.
  kAlive = 20,
};

// Returns the name of `kind` in messages: "contribution"; "unknown" for a
// number that is not a kind.
absl::string_view FrameKindName(FrameKind kind);

// Round that stands for the state before round 0: the initial parameters of the
// worker at position 0, which the shards store unchanged. In a field that need
// not name a round, kInitialRound means "no round".
inline constexpr int64_t kInitialRound = -1;

// Values of FrameHeader::part in kFactors, and in kOutcome of a layer that goes
// by factors. The first two name the factor that the frame is part of.
// kProductPart, only in kOutcome: the frame is part of the product of the
// factors. kDensePart: the frame is part of the dense gradient of a worker
// whose step has more rows than the factors have room for.
inline constexpr uint8_t kOutputGradientMatrix = 0;
inline constexpr uint8_t kInputMatrix = 1;
inline constexpr uint8_t kProductPart = 2;
inline constexpr uint8_t kDensePart = 3;

// Value of FrameHeader::part in all other frames with values, unless
// kResumedPart applies: the frame has parameters or a gradient. Parts 1, 2, ...
// say that the frame has values of the first, second, ... array of optimizer
// state; each array is as long as the parameters. If the callers run the
// optimizer, kCopy frames can have one more part after the last array: the mean
// gradient of the round.
inline constexpr uint8_t kValuesPart = 0;

// Value of FrameHeader::part in kContribution, kAggregate, and kLocal to the
// carrier of a chunk, in a sparse job (SparsityOptions): the workers held the
// block of this frame back until this round, so its values already contain
// momentum (AddBlockUpdate).
inline constexpr uint8_t kResumedPart = 1;

// Values of FrameHeader::part in kProbe. kMoreFollow: more frames of the train
// follow. kLastOfTrain: this frame is the last one of the train. kTrainAnswer:
// this frame answers a train.
inline constexpr uint8_t kMoreFollow = 0;
inline constexpr uint8_t kLastOfTrain = 1;
inline constexpr uint8_t kTrainAnswer = 2;

// Values of FrameHeader::part in kVote and kVerdict. kGood: the step counts.
// kSkipped: the step changes no parameters.
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
  // Index of the chunk within the layer. Exceptions: in kSum, kMean, and kLocal
  // and kOutcome of a ring, index of the segment; in kFactors, and kOutcome of
  // factors, seat of the worker that made the values; in kFinished, index of
  // the buffer among those of the outcome (docs/wire_format.md).
  uint32_t chunk = 0;
  // Meaning depends on the kind: see the constants above. 0 for kinds without
  // such a constant.
  uint8_t part = 0;
  // Exponent of a frame with WireType::kFloat16: a decoded value is its fp16
  // number times 2^exponent. 0 for other wire types. The driver sets it when it
  // encodes the payload.
  int8_t exponent = 0;
  // In a sparse round, in kContribution, kAggregate, and kLocal to the carrier
  // of a chunk: number of frames with values that the sender sends for this
  // chunk. If the number is 0, one frame without payload says so. In kFinished:
  // 1 if the outcome has a sum of dense gradients (kDensePart), 0 if not. 0 in
  // all other frames.
  uint16_t frames = 0;
  int64_t round = 0;  // Round of the layer; kVote and kVerdict: the step.
  PeerId sender;      // Member that sends the frame.
  // Index of the payload's first element, counted from the start of the values
  // that a FrameGrid cuts: a chunk, factor, dense gradient, part of a product,
  // segment (in a sparse job: layer) or buffer. A frame of the grid begins at
  // this index.
  uint32_t offset = 0;
  uint32_t payload_bytes = 0;  // Length of the payload in its wire type.
  // CRC-32C of the payload. 0: the transport of the sender computes it.
  // Receivers over TCP check it; receivers through shared memory do not.
  uint32_t payload_crc = 0;

  bool operator==(const FrameHeader&) const = default;
};

// A frame in memory. Copying it is cheap: the payload is a reference.
struct Frame {
  FrameHeader header;  // Description of the payload.
  // Values of the frame. A machine that sends a frame gives float32 values; the
  // driver encodes them to header.payload_bytes bytes. A machine that receives
  // a frame gets float32 values if they have landed in a place. In scratch it
  // gets the bytes of the wire, which Accumulate decodes
  // (common/protocol/outbox.h).
  Buffer payload;
  // Priority of sending: frames with lower values go first (SendQueue). Not
  // sent.
  uint32_t priority = 0;
  // True if the network may send the frame in one message with other frames
  // that wait for the same peer. Only SimulatedNetwork, which models the cost
  // of messages, reads this field. A socket always sends all waiting frames
  // together. Not sent.
  bool fused = false;
};

// Writes `header` into `bytes`, which has room for kFrameHeaderBytes.
void EncodeFrameHeader(const FrameHeader& header, uint8_t* bytes);

// Reads a header from exactly kFrameHeaderBytes of untrusted input. The result
// has a known kind and wire type, a sender and an exponent in range, and a
// payload of at most kFramePayloadBytesMax bytes. The machine then checks that
// the header fits the job (CheckFrame).
//
// Errors: kInvalidArgument, with the field and its value: the caller must end
// the connection.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes);

// Returns OK if `payload` has the length and the checksum that the header
// states. Errors: kInvalidArgument, with both values: the caller must end the
// connection.
absl::Status CheckPayload(const FrameHeader& header, const Buffer& payload);

// Returns a description of the header for messages: "contribution layer=3
// chunk=0 part=0 round=12 offset=65536 bytes=262144 from worker 1".
std::string DescribeFrame(const FrameHeader& header);

// True if the frame only shows that its connection carries frames. A kAlive
// frame with a payload goes to the handler, which refuses it.
constexpr bool IsAlive(const FrameHeader& header) {
  return header.kind == FrameKind::kAlive && header.payload_bytes == 0;
}

// Returns the error that refuses a frame: kInvalidArgument, with the text
// "DESCRIPTION: WHY". absl::StrCat makes WHY from `why`.
template <typename... Parts>
absl::Status RefuseFrame(const FrameHeader& header, const Parts&... why) {
  return InvalidArgumentError(DescribeFrame(header), ": ", why...);
}

// Rule by which a run of values is cut into frames. Dense values are cut at
// multiples of kFrameElementsMax. Values of a sparse layer (Job::IsSparse) are
// cut where blocks of the pool end, so that each frame lies in one block. If a
// block began before the run, the first frame has only the rest of this block,
// and so it is shorter.
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
  // Returns the number of frames; 0 if elements() and skipped() are 0.
  constexpr int64_t Count() const {
    return (elements_ + skipped_ + length_ - 1) / length_;
  }
  // Offset returns the index of the first value of frame `index`. Length
  // returns the number of values of this frame. The last frame is shorter than
  // the others if there are not enough values for a full frame.
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

// Returns the number of bytes that the frame's values have as float32.
// REQUIRES: header.wire is not kNone.
constexpr int64_t FloatBytes(const FrameHeader& header) {
  return header.payload_bytes / WireBytes(header.wire) *
         static_cast<int64_t>(sizeof(float));
}

// Returns the index of a frame in `grid` or, in the second form, in the grid of
// `elements` dense values. Errors: kInvalidArgument if no frame of the grid has
// the header's offset and length; the message has the header's value and the
// expected one.
absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                   const FrameGrid& grid);
inline absl::StatusOr<int64_t> FrameIndex(const FrameHeader& header,
                                          int64_t elements) {
  return FrameIndex(header, FrameGrid(elements));
}

}  // namespace nereus
