#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/compute/block_pieces.h"
#include "common/compute/optimizer.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/frame.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "common/protocol/rank_list.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Actions that machines ask of their drivers. Values are float32 in host
// memory, with one exception: a frame that was received into scratch has the
// bytes of the wire, and Accumulate decodes them. The driver encodes the values
// of a frame that is sent (common/driver/wire_values.h).

// Sends a frame to one peer.
struct SendFrame {
  PeerId to;    // Receiver.
  Frame frame;  // Its values, if it has any, are float32.
};

// Sends a frame to several workers. The driver encodes it once for all of them.
struct BroadcastFrame {
  RankList to;  // Ranks of the receivers; this process is not among them.
  Frame frame;  // Its values, if it has any, are float32.
};

// Names the gradient that checked values are part of. The check finds values
// that are NaN or infinite: with NanPolicy::kFail, such a value ends the job.
struct GradientCheck {
  int32_t layer = 0;   // Index of the layer.
  int64_t round = 0;   // Round of the gradient.
  int32_t worker = 0;  // Rank of the worker that computed the gradient.
  int64_t offset = 0;  // Position of the first value in the layer, in elements.
};

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
  std::optional<GradientCheck> check;  // Absent: the values are not checked.
};

// Adds an addend to a sum: sum = (sum + addend) * factor, or, with `replaces`,
// sum = addend * factor. Decodes and checks the addend in the same pass.
// Lengths must agree. A failed check leaves the sum undefined and ends the
// member's work, as CheckValues does.
struct Accumulate {
  Buffer sum;
  Addend addend;
  bool replaces = false;
  float factor = 1.0f;
};

// Copies values between two buffers of the same length.
struct CopyValues {
  Buffer destination;
  Buffer source;
};

// Checks that no value is NaN or infinite. If a value is NaN or infinite, the
// driver tells the member (Member::OnNotFinite). From then on it carries out
// only messages (IsMessage), and drops all other actions of this outbox and of
// later outboxes.
struct CheckValues {
  Buffer values;
  GradientCheck check;
};

// Computes the CRC-32C of `values`, a layer's parameters as of `round`, and
// tells the member (Member::OnChecksum) before it carries out the next action.
struct ChecksumValues {
  int32_t layer = 0;
  int64_t round = 0;
  Buffer values;
};

// Multiplies values by a factor, in place.
struct ScaleValues {
  Buffer values;
  float factor = 1.0f;
};

// Rounds values, in place, to the values that a receiver gets if they are sent
// in this wire type (RoundToWire in common/driver/wire_values.h).
struct RoundValues {
  Buffer values;
  WireType wire = WireType::kFloat32;
};

// Makes one step of the optimizer (ApplyOptimizer in
// common/compute/optimizer.h). `updated` may be `parameters`.
struct UpdateParameters {
  int32_t layer = 0;            // Index of the layer.
  OptimizerOptions optimizer;   // Rule and constants of the update.
  int64_t step = 0;             // Step of the update.
  float gradient_scale = 1.0f;  // Factor that makes `gradient` the mean.
  Buffer gradient;              // Sum of the gradients, or their mean.
  Buffer parameters;            // Parameters before the update.
  Buffer state;                 // Optimizer state, updated in place.
  Buffer updated;               // Parameters after the update.
  bool clears_state = false;    // True if the state is zero afterwards.
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
  Buffer norms;                // Shape {pieces}: weights for the next choice.
  Buffer parameters;           // Parameters of the layer.
  Buffer gradient;  // Gradient as pushed; afterwards the values to send.
  // Momentum and residual. Empty: there is no residual, or an Accelerator has
  // it.
  Buffer velocity;
  Buffer held;
};

// Selects the blocks to send in the next round (ChooseBlocks in
// common/compute/blocks.h). `after` may be `before`.
struct SelectBlocks {
  int64_t count = 0;  // Number of blocks to send.
  Buffer norms;       // Norm of each block.
  Buffer before;      // Choice for this round.
  Buffer after;       // Choice for the next round.
};

// Multiplies the factors of a gradient: gradient = scale * product
// (FactorGradient in common/compute/factor_gradient.h). May make a part of the
// gradient only: rows [begin, end) of its matrix, and after the last row the
// bias.
struct MultiplyFactors {
  int64_t rows = 0;        // Rows of the factors.
  int64_t m = 0;           // Rows of the gradient's matrix.
  int64_t n = 0;           // Columns of the gradient's matrix.
  bool bias = false;       // True if the gradient has a bias.
  float scale = 1.0f;      // Factor of the product.
  Buffer output_gradient;  // rows x m
  Buffer input;            // rows x n
  // The part: (end - begin) * n values, and m values if it has the bias.
  Buffer gradient;
  int64_t begin = 0;  // First row of the part.
  int64_t end = 0;    // Row after the last one of the part.

  // True if the part is the whole gradient.
  bool is_whole() const { return begin == 0 && end == m; }
  // True if the part ends with the bias.
  bool makes_bias() const { return bias && end == m; }
};

// Tells the caller that round `round` of `layer` is done on this worker. With
// kInitialRound, the layer has the job's initial parameters.
struct LayerDone {
  int32_t layer = 0;
  int64_t round = 0;
  // True if the verdict skips the step. The gradient then has undefined values,
  // and a caller with its own optimizer must not run it for this step.
  bool skipped = false;
  // Mean gradient, if the caller runs the optimizer. Empty: the mean is in the
  // memory of the gradient that was pushed, or the servers run the optimizer.
  Buffer mean = Buffer();
};

// Tells the caller that a part of round `round` of `layer` is done: values
// [offset, offset + count) of the parameters, or of the mean gradient if the
// caller runs the optimizer. These values do not change again in this round, so
// a caller can copy them to its device while other parts arrive. Parts do not
// overlap. LayerDone follows the last part; a round may have no parts.
struct PartDone {
  int32_t layer = 0;
  int64_t round = 0;
  int64_t offset = 0;
  int64_t count = 0;
};

// Tells the caller that the server has received a whole train of probes.
struct ProbeAnswered {
  int64_t train = 0;
};

// Writes a shard's part of a checkpoint to disk, in the background, and tells
// the coordinator the outcome (CheckpointPart).
struct SaveCheckpoint {
  int32_t shard = 0;
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// Reads chunks as of `round` from a checkpoint into the buffers of `values`. If
// the read fails, the process ends with the reason.
struct LoadCheckpoint {
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// Sends a message to the coordinator; dropped if no session is open.
struct SendMessage {
  MemberMessage message;
};

// Changes the connections to those of a new epoch (ConnectionsOf in
// common/protocol/connections.h).
struct FollowEpoch {
  std::shared_ptr<const EpochStart> start;
};

// Ends the membership: OK if the job is finished.
struct EndMembership {
  absl::Status outcome;
};

using Action =
    std::variant<SendFrame, BroadcastFrame, Accumulate, CopyValues, CheckValues,
                 ChecksumValues, ScaleValues, RoundValues, SplitGradient,
                 SelectBlocks, UpdateParameters, MultiplyFactors, LayerDone,
                 PartDone, ProbeAnswered, SaveCheckpoint, LoadCheckpoint,
                 SendMessage, FollowEpoch, EndMembership>;

// Actions of one event, in the order in which they must be carried out. A
// driver reuses its outbox for all events, so that its list does not allocate
// memory in the long run.
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

}  // namespace nereus
