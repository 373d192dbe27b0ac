#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"
#include "common/protocol/frame.h"
#include "common/protocol/job_options.h"

namespace nereus {

// A worker of an epoch.
struct EpochWorker {
  int32_t rank = 0;
  // The first step, and round of every layer, that it takes part in.
  int64_t first_step = 0;

  bool operator==(const EpochWorker&) const = default;
};

// What the votes on a step came to, with NanPolicy::kSkip.
struct StepVerdict {
  int64_t step = 0;
  bool skipped = false;

  bool operator==(const StepVerdict&) const = default;
};

// As many are kept: workers are at most a step apart.
inline constexpr int kVerdictsMax = 4;

// Servers that have a shard's chunks, by rank.
struct ShardServers {
  int32_t primary = 0;  // Runs the rounds of the chunks.
  int32_t backup = -1;  // Follows each round; -1: there is no backup.
  // True if the backup has all that ever left the primary: it can take over.
  bool backup_is_current = false;

  bool operator==(const ShardServers&) const = default;
};

// A round of a layer between workers that some have finished and others have
// not, when an epoch ends: those get all that it came to from `source`, and so
// the same as everybody.
struct FinishedRound {
  int32_t layer = 0;
  int64_t round = 0;
  int32_t source = 0;        // Rank of a worker that has finished it.
  int32_t contributors = 0;  // How many workers' gradients it has.

  bool operator==(const FinishedRound&) const = default;
};

// Everything that one epoch of a job fixes: equal on all its members, who
// derive all they do from it. Constant once made.
struct Job {
  uint64_t id = 0;  // Drawn by the coordinator; frames carry it.
  uint64_t epoch = 0;

  // Ranks ascend and are never given twice, so that they are higher for those
  // who join later, and first steps ascend with them. A worker's place in here
  // is its position.
  std::vector<EpochWorker> workers;
  // Ranks of workers that have left, ascending; they stay until nobody needs
  // what they hold.
  std::vector<int32_t> left_workers;
  // Names of both, by rank, as messages show them. May lack some.
  std::map<int32_t, std::string> worker_names;

  std::vector<LayerSpec> layers;  // In forward order.
  std::vector<Route> routes;      // By layer.
  Placement placement;
  JobOptions options;

  // Of a sparse job, made by MakeJob: one more layer after the model's, whose
  // values say which blocks travel in the next round (common/compute/blocks.h),
  // and where, in blocks' values, the layers lie: in the order in which
  // backward makes their gradients.
  int block_layer = -1;
  int64_t block_length = 0;
  std::vector<int64_t> pool_offsets;  // By layer of the model.

  // Arrays of optimizer state that go with the parameters, of as many values
  // as a layer has parameters each: the callers', or OptimizerStateCount.
  int32_t state_arrays = 0;

  // The round as of which the shards have every layer, those included that
  // workers update: kInitialRound, or that of the checkpoint that the job was
  // restored from.
  int64_t base_round = kInitialRound;

  // The first step that no worker had begun when this epoch was made, and the
  // number of contributions of all steps before it: where in its examples the
  // job is.
  int64_t first_step = 0;
  int64_t contributions_before = 0;

  std::vector<FinishedRound> finished_rounds;  // Layers ascend.

  // With NanPolicy::kSkip: the last verdicts that any member has heard. Steps
  // ascend.
  std::vector<StepVerdict> verdicts;

  // By shard. With all servers there, server i serves shard i, and keeps the
  // copy of the shard before it, if there are copies.
  std::vector<ShardServers> shard_servers;

  // The rank of the worker that gives others the layers that workers own; -1:
  // none has to.
  int32_t donor = -1;

  // A checkpoint of this round was asked for; kInitialRound: of none.
  int64_t checkpoint_round = kInitialRound;

  // The last round of this plan: workers begin no later step, so that the next
  // epoch may have other routes; kInitialRound: there is none.
  int64_t switch_round = kInitialRound;

  // The model's layers.
  absl::Span<const LayerSpec> model() const;

  int shards() const { return placement.shards(); }
  int worker_count() const { return static_cast<int>(workers.size()); }

  // Name of a member for messages: "worker NAME", or "shard 2". A worker
  // without a name is shown with its rank.
  std::string NameOf(PeerId member) const;

  // The member to which a chunk's frames go.
  PeerId ServerOf(const Chunk& chunk) const {
    return PeerId::Shard(shard_servers[chunk.shard].primary);
  }

  // Whether a server holds something, so that it is a member.
  bool Holds(int server) const;

  // A worker's position, or -1.
  int PositionOf(int rank) const;

  // How many workers contribute to `round`: those at positions below this.
  int ContributorsOf(int64_t round) const;

  // 1 / contributors: what turns a sum of the workers' gradients into their
  // mean.
  float MeanScale(int64_t round) const {
    return 1.0f / static_cast<float>(ContributorsOf(round));
  }

  // Whether a checkpoint is made of `round`: the shards save what they hold as
  // of it, and the first worker sends them what workers own.
  bool IsCheckpoint(int64_t round) const;
  // The last one of these up to and with `round`, or one of an epoch before.
  std::optional<int64_t> LastCheckpoint(int64_t round) const;

  // Whether this epoch ends with switch_round, as far as is known.
  bool switches() const { return switch_round != kInitialRound; }
  // Whether the shards get all layers as of it: where the callers' optimizers
  // run, workers own them by any plan.
  bool hands_over() const {
    return switches() && options.optimizer_place == OptimizerPlace::kServer;
  }
  // Whether the shards get what workers own as of `round`: for a checkpoint, or
  // the next plan.
  bool IsSaved(int64_t round) const;

  // Whether routes may change between `round` and the next one: what workers
  // hold back of a sparse layer belongs to its route.
  bool MaySwitchAfter(int64_t round) const;

  // Whether workers vote on each step, and nothing is updated before.
  bool votes() const { return options.nan == NanPolicy::kSkip; }

  // Whether whoever adds up gradients looks at them before (CheckValues).
  bool checks_contributions() const { return options.nan == NanPolicy::kFail; }

  // Whether rounds may close without everybody's contributions.
  bool partial() const { return options.quorum != Quorum::kAll; }
  // Whether this one has to wait for everybody nevertheless.
  bool IsResync(int64_t round) const {
    return options.resync_every > 0 && (round + 1) % options.resync_every == 0;
  }
  // The position of the worker whose contribution closes a round, with
  // Quorum::kMajority: the same draw everywhere, and another worker's where the
  // one that was drawn is gone.
  int InitiatorOf(int64_t round) const;

  // Whether only some blocks of this layer travel.
  bool IsSparse(int layer) const {
    return block_layer >= 0 && layer != block_layer;
  }
  int64_t block_count() const { return layers[block_layer].parameters; }
  // How many travel in `round`.
  int64_t BlocksIn(int64_t round) const;

  // How the contributions to a chunk, and what they come to, are cut into
  // frames: none of a sparse layer has values of two blocks. And the block of
  // the first frame.
  FrameGrid GridOf(const Chunk& chunk) const;
  int64_t FirstBlock(const Chunk& chunk) const;

  // Whether frames share messages.
  bool fuses() const { return options.fusion_bytes != kNoFusion; }

  // Whether workers ask for a round's outcome when they need it.
  bool decoupled() const { return options.overlap == Overlap::kDecoupled; }

  // Frame::rank of a frame: with decoupled rounds, layers that the next forward
  // needs first go first. Without, a step waits for all of them, and the order
  // in which backward makes them keeps both ways of the network busy.
  uint32_t SendPriority(const FrameHeader& header) const {
    return decoupled() ? header.layer : 0;
  }

  // How the values of a frame travel: by the layer's route, unless they have to
  // stay what they are, being the state of a layer and not a gradient or what
  // workers compute with. kNone: there are none.
  WireType WireOf(const FrameHeader& header) const;

  // Whether the layer's parameters and optimizer state are with the workers,
  // and the shards hold them as of base_round.
  bool WorkersOwn(int layer) const {
    return options.optimizer_place == OptimizerPlace::kWorker ||
           !UsesServers(routes[layer].scheme);
  }
};

// Shared between the machine that follows it and the driver that prints it.
using JobPtr = std::shared_ptr<const Job>;

// Workers 0 to `count` - 1, all from step 0.
std::vector<EpochWorker> FirstWorkers(int count);

// As it is while all servers are there.
std::vector<ShardServers> FirstShardServers(int shards, bool backup);

// The most arrays of state that an optimizer may have.
inline constexpr int kStateArraysMax = 8;

// Checks a job whose parts came over the network, places its chunks on `shards`
// shards, which have their FirstShardServers if it names none, and counts the
// state of an optimizer of ours. Errors: kInvalidArgument, naming the field and
// its value.
absl::StatusOr<JobPtr> MakeJob(Job job, int shards);

// A header of this job: everything but kind, layer, chunk, round and the
// payload's place is fixed.
FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round);

// `header` with the wire type, offset and length of frame `index` of `grid`;
// and that frame of `values`, float32, which are cut so.
FrameHeader CutHeader(const Job& job, FrameHeader header, const FrameGrid& grid,
                      int64_t index);
inline Frame CutFrame(const Job& job, const FrameHeader& header,
                      const FrameGrid& grid, int64_t index,
                      const Buffer& values) {
  return {CutHeader(job, header, grid, index),
          values.Slice(grid.Offset(index) * 4, grid.Length(index) * 4)};
}

// Adds to `send`, one by one, the frames that carry `values`.
template <typename Send>
void CutIntoFrames(const Job& job, const FrameHeader& header,
                   const FrameGrid& grid, const Buffer& values, Send send) {
  for (int64_t index = 0; index < grid.Count(); ++index) {
    send(CutFrame(job, header, grid, index, values));
  }
}
template <typename Send>
void CutIntoFrames(const Job& job, const FrameHeader& header,
                   const Buffer& values, Send send) {
  CutIntoFrames(job, header, FrameGrid(values.float_count()), values, send);
}

// What every frame of this epoch must satisfy on any member: job, epoch,
// sender, layer. Errors: kInvalidArgument, with both values.
absl::Status CheckFrame(const Job& job, PeerId from, const FrameHeader& header);

// The chunk that a frame means. Errors: kInvalidArgument.
absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header);

}  // namespace nereus
