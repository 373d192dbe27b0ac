#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/compute/block_pieces.h"
#include "common/compute/optimizer.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "common/protocol/replica_sample.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Ranks of the workers that receive a frame, ascending. All frames with the
// same receivers share one list, so that no frame needs a copy of the list.
using RankList = std::shared_ptr<const std::vector<int32_t>>;

// Returns the ranks of `workers`, without `self`, because a worker does not
// send to itself. A server passes -1, which is the rank of no worker.
RankList RanksOf(absl::Span<const EpochWorker> workers, int32_t self = -1);

// Actions that machines ask of their drivers. Values are float32 in host
// memory, with one exception: the payload of a frame in scratch has the format
// of the wire, and Accumulate decodes it. When the driver sends a frame, it
// encodes the frame's values (common/driver/wire_values.h).

// Sends a frame to one peer.
struct SendFrame {
  PeerId to;    // Receiver.
  Frame frame;  // Its values, if it has any, are float32.
};

// Sends a frame to several workers. The driver encodes it once for all of them.
struct BroadcastFrame {
  RankList to;  // Ranks of the receiving workers, without this process.
  Frame frame;  // Its values, if it has any, are float32.
};

// Values that a check looks at.
enum class Checked {
  kGradient,  // Gradient of one worker: no value may be as large as kTooLarge.
  kMean,      // Mean gradient of all workers: each value must be finite.
  kUpdate,    // Parameters and optimizer state after an update: the same.
};
// Returns the begin of a sentence about a value that must not be; the value
// follows.
inline absl::string_view SubjectOf(Checked of) {
  switch (of) {
    case Checked::kGradient:
      return "the gradient has ";
    case Checked::kMean:
      return "the mean gradient of all workers has ";
    case Checked::kUpdate:
      return "the update by the mean gradient of all workers has ";
  }
  return "";
}

// Request to check values: one that is NaN, infinite or too large ends the job.
// Gradients are checked with NanPolicy::kFail (with kSkip, workers look at
// theirs before they vote), results unless the policy is kIgnore. The fields
// name the values in the error.
struct ValueCheck {
  int32_t layer = 0;   // Index of the layer.
  int64_t round = 0;   // Round of the gradient.
  int32_t worker = 0;  // Rank of the worker that computed the gradient.
  int64_t offset = 0;  // Index of the first checked value in the layer.
  Checked of = Checked::kGradient;
};

// Returns the check of a result: of values of `layer` from `offset` on that
// follow from the contributions of all workers to `round`. Returns nothing if
// the job checks none (NanPolicy::kIgnore).
inline std::optional<ValueCheck> ResultCheck(const Job& job, int32_t layer,
                                             int64_t round, int64_t offset,
                                             Checked of = Checked::kUpdate) {
  if (job.options.nan == NanPolicy::kIgnore) return std::nullopt;
  return ValueCheck{layer, round, /*worker=*/0, offset, of};
}

// Values to add to a sum: float32, or the payload of a frame in its wire type.
struct Addend {
  // Float32 values.
  explicit Addend(Buffer values) : payload(std::move(values)) {}
  // Payload of a frame that was received into scratch.
  explicit Addend(const Frame& received)
      : payload(received.payload),
        wire(received.header.wire),
        exponent(received.header.exponent) {}

  Buffer payload;                      // Values, in the format `wire`.
  WireType wire = WireType::kFloat32;  // Number format of the values.
  int8_t exponent = 0;                 // FrameHeader::exponent.
  std::optional<ValueCheck> check;     // Absent: the values are not checked.
  // True if the values do not change until the sum is complete. FrameSums then
  // does not copy them. REQUIRES: `wire` is kFloat32.
  bool stays = false;
};

// Adds an addend to a sum: sum = (sum + addend) * factor. With `replaces`:
// sum = addend * factor. With a base: sum = (base + addend) * factor. Decodes
// the addend, and checks it if `addend.check` is present. Sum and addend must
// have the same number of values. If the check finds a NaN or an infinity, the
// sum is undefined, and the driver goes on as after CheckValues.
struct Accumulate {
  Buffer sum;             // Sum so far; afterwards the new sum.
  Addend addend;          // Values to add.
  bool replaces = false;  // True if the old values of `sum` do not count.
  float factor = 1.0f;    // Factor of the new sum.
  // Start value of the sum, float32, if it is not in `sum` itself. Empty: the
  // sum starts from `sum`.
  Buffer base = {};
};

// Copies values between two buffers of the same length.
struct CopyValues {
  Buffer destination;
  Buffer source;
};

// Checks values. If it finds one that must not be, the driver tells the member
// (Member::OnBadValue). From then on the driver carries out only the
// actions for which IsMessage is true, and drops all other actions of this
// outbox and of later outboxes.
struct CheckValues {
  Buffer values;
  ValueCheck check;
};

// Computes the CRC-32C of `values` as of `round`: a layer's parameters on a
// worker, a chunk's parameters or optimizer state on a server. The driver
// gives the checksum to the member (Member::OnChecksum) before it
// carries out the next action.
//
// With `sampled`, computes the checksum of these elements only
// (SampleChecksum). If a device has newer values than the host, the driver
// copies no others from it, and gives the checksum to the member later, in the
// same epoch, or not at all.
struct ChecksumValues {
  int32_t layer = 0;
  int64_t round = 0;
  Buffer values;
  std::optional<SampledElements> sampled = std::nullopt;
  int32_t chunk = 0;      // Servers: index of the chunk in the layer.
  bool is_state = false;  // Servers: true for the chunk's optimizer state.
};

// Multiplies values by a factor, in place.
struct ScaleValues {
  Buffer values;
  float factor = 1.0f;
};

// Replaces each value by the value that a receiver would decode if the values
// were sent in the format `wire` (RoundToWire in common/driver/wire_values.h).
struct RoundValues {
  Buffer values;
  WireType wire = WireType::kFloat32;
};

// Makes one step of the optimizer (ApplyOptimizer in
// common/compute/optimizer.h). `updated` may be the memory of `parameters`.
struct UpdateParameters {
  int32_t layer = 0;                // Index of the layer.
  OptimizerOptions optimizer;       // Rule and constants of the update.
  int64_t step = 0;                 // Step of the update.
  float gradient_scale = 1.0f;      // Factor that makes `gradient` the mean.
  Buffer gradient;                  // Sum of the gradients, or their mean.
  Buffer parameters;                // Parameters before the update.
  Buffer state;                     // Optimizer state, updated in place.
  Buffer updated;                   // Parameters after the update.
  std::optional<ValueCheck> check;  // Check of the result; absent: none.
  bool clears_state = false;        // True: sets the state to 0 afterwards.
};

// Splits a layer's gradient into the part that is sent and the residual
// (SplitPieces in common/compute/blocks.h). Afterwards the values to send are
// packed at the start of `gradient`, and the rest of `gradient` is undefined.
struct SplitGradient {
  int32_t layer = 0;           // Index of the layer.
  BlockPieces pieces;          // Pieces of the layer.
  std::vector<PieceUse> uses;  // Use of each piece in this round.
  float momentum = 0.0f;       // Momentum of the optimizer.
  float weight_decay = 0.0f;   // Weight decay of the optimizer.
  Buffer norms;                // Shape {pieces}; adds each piece's norm to it.
  Buffer parameters;           // Parameters of the layer.
  Buffer gradient;  // Gradient as pushed; afterwards the values to send.
  // `held` is the residual, and `velocity` is its momentum; the action updates
  // both. Empty: the layer has no residual, or a device has it.
  Buffer velocity;
  Buffer held;
};

// Selects the blocks to send in the next round (ChooseBlocks in
// common/compute/blocks.h). `after` may be the memory of `before`.
struct SelectBlocks {
  int64_t count = 0;  // Number of blocks to send.
  Buffer norms;       // Norm of each block.
  Buffer before;      // Choice for this round.
  Buffer after;       // Choice for the next round.
};

// Multiplies the factors of a gradient: gradient = scale * product
// (FactorGradient in common/compute/factor_gradient.h). With an addend:
// gradient = (product + addend) * scale. Can compute only a part of the
// gradient: rows [begin, end) of its matrix. If the part has the last row of
// the matrix, it has the bias too, behind this row.
struct MultiplyFactors {
  int64_t rows = 0;        // Rows of the factors.
  int64_t m = 0;           // Rows of the gradient's matrix.
  int64_t n = 0;           // Columns of the gradient's matrix.
  bool bias = false;       // True if the gradient has a bias.
  float scale = 1.0f;      // Factor of the product.
  Buffer output_gradient;  // rows x m
  Buffer input;            // rows x n
  // Output, the part: (end - begin) * n values, and m more with the bias.
  Buffer gradient;
  int64_t begin = 0;  // First row of the part.
  int64_t end = 0;    // Row after the last one of the part.
  // Values of the same part of a gradient; empty: there is no addend.
  Buffer addend = {};
  std::optional<ValueCheck> check = std::nullopt;  // Check of `gradient`.

  // True if the part is the whole gradient.
  bool is_whole() const { return begin == 0 && end == m; }
  // True if the part has the bias.
  bool makes_bias() const { return bias && end == m; }
};

// Tells the caller that round `round` of `layer` is done on this worker. With
// kInitialRound, the layer has the job's initial parameters.
struct LayerDone {
  int32_t layer = 0;
  int64_t round = 0;
  // True if the verdict skips the step. The gradient then has undefined values.
  // A caller that runs the optimizer must not run it for this step.
  bool skipped = false;
  // Mean gradient, if the caller runs the optimizer. Empty: the mean is in the
  // memory of the pushed gradient, or the caller does not run the optimizer.
  Buffer mean = Buffer();
};

// Tells the caller that a part of round `round` of `layer` is done: values
// [offset, offset + count) of the parameters, or of the mean gradient if the
// caller runs the optimizer. These values do not change again in this round, so
// a caller can copy them to its device while other parts arrive. Parts do not
// overlap, and need not cover the layer. LayerDone follows the last part.
struct PartDone {
  int32_t layer = 0;
  int64_t round = 0;
  int64_t offset = 0;
  int64_t count = 0;
};

// Tells the caller that the target has received a whole train of probes.
struct ProbeAnswered {
  int64_t train = 0;
};

// Writes a shard's part of a checkpoint to disk, on a thread of its own, and
// then tells the coordinator the outcome (CheckpointPart).
struct SaveCheckpoint {
  int32_t shard = 0;
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// Reads chunks as of `round` from a checkpoint into the buffers of `values`. If
// the checkpoint is damaged, the driver tells the member (Member::OnDamaged).
// From then on it carries out only the actions for which IsMessage is true,
// until an epoch begins from a base round again. If the server cannot read the
// chunks for another reason, it ends with the reason.
struct LoadCheckpoint {
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// Sends a message to the coordinator. If no session is open, drops the message.
struct SendMessage {
  MemberMessage message;
};

// Sends the coordinator a heartbeat at once: this member's state has changed in
// a way that the coordinator should know before the next heartbeat is due. If
// no session is open, does nothing.
struct SendHeartbeat {};

// Closes and opens connections, so that they are those of a new epoch
// (ConnectionsOf in common/protocol/connections.h).
struct FollowEpoch {
  std::shared_ptr<const EpochStart> start;
};

// Ends the membership of this process. `outcome` is OK if the job is finished,
// else the reason of the refusal or failure.
struct EndMembership {
  absl::Status outcome;
};

using Action =
    std::variant<SendFrame, BroadcastFrame, Accumulate, CopyValues, CheckValues,
                 ChecksumValues, ScaleValues, RoundValues, SplitGradient,
                 SelectBlocks, UpdateParameters, MultiplyFactors, LayerDone,
                 PartDone, ProbeAnswered, SaveCheckpoint, LoadCheckpoint,
                 SendMessage, SendHeartbeat, FollowEpoch, EndMembership>;

// Actions of one event, in the order in which the driver must carry them out.
// A driver uses one outbox for all events: its list keeps its memory, so in the
// long run no event allocates.
class Outbox {
 public:
  template <typename T>
  void Add(T action) {
    actions_.emplace_back(std::move(action));
  }
  const std::vector<Action>& actions() const { return actions_; }
  bool empty() const { return actions_.empty(); }
  void Clear() { actions_.clear(); }

 private:
  std::vector<Action> actions_;
};

// Appends to `out` the action that updates one block, or the part of a block in
// one chunk, after a sparse round: its `parameters` and its optimizer `state`.
// `scale` times `gradient` is the mean of the contributions. Each buffer has
// the float32 values of this block or part, which begins at value `offset` of
// the layer.
//
// `resumed`: the workers held the block back until this round, and applied
// momentum to its gradients meanwhile. So the update applies no momentum, and
// sets the velocity in `state` to zero. If it applied momentum a second time,
// the parameters would overshoot. (Lin et al., "Deep gradient compression",
// momentum correction.)
void AddBlockUpdate(const Job& job, int layer, int64_t round, bool resumed,
                    int64_t offset, float scale, const Buffer& gradient,
                    const Buffer& parameters, const Buffer& state, Outbox& out);

}  // namespace nereus
