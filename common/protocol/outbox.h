#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "common/compute/block_pieces.h"
#include "common/compute/optimizer.h"
#include "common/protocol/chunk_values.h"
#include "common/protocol/frame.h"
#include "common/protocol/membership.h"
#include "common/protocol/peer.h"
#include "common/tensor/buffer.h"

namespace nereus {

// What machines ask of their drivers. All values are float32 in host memory,
// those of frames too: drivers encode them (common/driver/wire_values.h).

struct SendFrame {
  PeerId to;
  Frame frame;
};

// To every worker of the epoch but the sender.
struct BroadcastFrame {
  Frame frame;
};

// destination = source; same length.
struct CopyValues {
  Buffer destination;
  Buffer source;
};

// sum = (sum + addend) * factor; same length.
struct AddValues {
  Buffer sum;
  Buffer addend;
  float factor = 1.0f;
};

// With NanPolicy::kFail: `values` are some of what `worker` contributes to
// `round` of `layer`, from element `offset` on. Where one is NaN or infinite,
// nothing but messages is carried out any more, this outbox's rest with it, and
// the member hears of it (Member::OnNotFinite).
struct CheckValues {
  Buffer values;
  int32_t layer = 0;
  int64_t round = 0;
  int32_t worker = 0;
  int64_t offset = 0;
};

// Compute the CRC-32C of a layer's parameters, `values`, as of `round`, and
// tell the member (Member::OnChecksum), before the actions that follow.
struct ChecksumValues {
  int32_t layer = 0;
  int64_t round = 0;
  Buffer values;
};

// values *= factor.
struct ScaleValues {
  Buffer values;
  float factor = 1.0f;
};

// RoundToWire (common/driver/wire_values.h).
struct RoundValues {
  Buffer values;
  WireType wire = WireType::kFloat32;
};

// ApplyOptimizer (common/compute/optimizer.h). `updated` may be `parameters`.
struct UpdateParameters {
  OptimizerOptions optimizer;
  int64_t step = 0;
  float gradient_scale = 1.0f;
  Buffer gradient;
  Buffer parameters;
  Buffer state;
  Buffer updated;
};

// SplitPieces (common/compute/blocks.h) of a layer's gradient; afterwards what
// travels of it is at its begin, piece by piece, and nothing else is there.
struct SplitGradient {
  int32_t layer = 0;
  BlockPieces pieces;
  std::vector<PieceUse> uses;  // {pieces}
  float momentum = 0.0f;
  float weight_decay = 0.0f;
  Buffer norms;  // {pieces}
  Buffer parameters;
  Buffer gradient;
  // No bytes: there is nothing held, or it is with whoever carries this out.
  Buffer velocity;
  Buffer held;
};

// ChooseBlocks (the same). `after` may be `before`.
struct SelectBlocks {
  int64_t count = 0;
  Buffer norms;
  Buffer before;
  Buffer after;
};

// FactorGradient (common/compute/factor_gradient.h): gradient = scale *
// factors' product.
struct MultiplyFactors {
  int64_t rows = 0;
  int64_t m = 0;
  int64_t n = 0;
  bool bias = false;
  float scale = 1.0f;
  Buffer output_gradient;  // rows x m
  Buffer input;            // rows x n
  Buffer gradient;         // m * n, or m * n + m with the bias
};

// Round `round` of `layer` is done on this worker; kInitialRound: its
// parameters are the job's initial ones.
struct LayerDone {
  int32_t layer = 0;
  int64_t round = 0;
  // By the vote on its step nothing is to be updated: where the caller's own
  // optimizer runs, it must not. The gradient may be anything.
  bool skipped = false;
  // The mean gradient, where the caller's own optimizer runs and it is not in
  // the place of the gradient that was pushed.
  Buffer mean = Buffer();
};

// The other side has all of a train of probes.
struct ProbeAnswered {
  int64_t train = 0;
};

// Write a checkpoint's share of this shard to disk, in the background, and tell
// the coordinator what came of it (CheckpointPart).
struct SaveCheckpoint {
  int32_t shard = 0;
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// Read these values, as of `round`, from its checkpoint into the buffers given.
// A process that cannot ends with the reason.
struct LoadCheckpoint {
  int64_t round = 0;
  std::vector<ChunkValues> values;
};

// To the coordinator; dropped if there is no session.
struct SendMessage {
  MemberMessage message;
};

// This process is in a new epoch: connect to its members, and to no others.
struct FollowEpoch {
  std::shared_ptr<const EpochStart> start;
};

// The membership is over: OK if the job is finished.
struct EndMembership {
  absl::Status outcome;
};

using Action =
    std::variant<SendFrame, BroadcastFrame, CopyValues, AddValues, CheckValues,
                 ChecksumValues, ScaleValues, RoundValues, SplitGradient,
                 SelectBlocks, UpdateParameters, MultiplyFactors, LayerDone,
                 ProbeAnswered, SaveCheckpoint, LoadCheckpoint, SendMessage,
                 FollowEpoch, EndMembership>;

// The actions of one event, in the order in which they must be carried out.
// Reused from event to event, so that it does not allocate in the long run.
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
