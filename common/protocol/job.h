#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/layer_spec.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"
#include "common/plan/scheme.h"
#include "common/protocol/frame.h"
#include "common/protocol/job_options.h"
#include "common/protocol/lineup.h"

namespace nereus {

// Outcome of the votes on one step, with NanPolicy::kSkip.
struct StepVerdict {
  int64_t step = 0;      // Step that the workers voted on.
  bool skipped = false;  // True if the step changes no parameters.

  bool operator==(const StepVerdict&) const = default;
};

// Number of verdicts that a member keeps. Workers are at most one step apart,
// so no member asks for an older verdict.
inline constexpr int kVerdictsMax = 4;

// Ranks of the servers that have a shard's chunks.
struct ShardServers {
  int32_t primary = 0;  // Server that runs the rounds of the chunks.
  int32_t backup = -1;  // Server that follows each round; -1: no backup.
  // True if the backup has all that ever left the primary: it can take over.
  bool backup_is_current = false;

  bool operator==(const ShardServers&) const = default;
};

// Round of a layer that goes by factors or around a ring. When the last epoch
// ended, some workers had done the round and others had not. The others take
// its whole outcome from `source`. If they computed it again with other
// contributors, replicas would differ.
struct FinishedRound {
  int32_t layer = 0;         // Index of the layer.
  int64_t round = 0;         // Round that some workers lack.
  int32_t source = 0;        // Rank of a worker that has done it.
  int32_t contributors = 0;  // Number of workers in its mean, >= 1.

  bool operator==(const FinishedRound&) const = default;
};

// Pool of the blocks of a sparse job. It holds the layers of the model in
// backward order.
struct BlockPool {
  // Index of the block layer, which MakeJob adds after the model's layers; -1:
  // the job is not sparse. Its values tell which blocks travel in the next
  // round (common/compute/blocks.h).
  int layer = -1;
  int64_t block_length = 0;      // Number of values in a block.
  std::vector<int64_t> offsets;  // First value of each layer in the pool.

  bool operator==(const BlockPool&) const = default;
};

// Workers that have left the job, and the names of all workers.
struct Crew {
  // Ranks of workers that have left, ascending. They stay members until no
  // other member needs the values that they hold.
  std::vector<int32_t> left_workers;
  // Names of the workers in Job::workers and left_workers, by rank, for
  // messages. Some names may be missing.
  std::map<int32_t, std::string> worker_names;

  bool operator==(const Crew&) const = default;
};

// State that an epoch takes over from the job's earlier epochs.
struct JobHistory {
  // Base round: the shards have every layer as of this round, worker-owned
  // layers included. It is kInitialRound, the round of the checkpoint from
  // which the job goes on, or the last round of the plan before.
  int64_t base_round = kInitialRound;

  // First step of workers that join in this epoch. Either no worker that stays
  // had begun it when this epoch was made, or all workers start from it.
  int64_t first_step = 0;
  // Number of contributions in all steps before first_step. It tells which
  // examples the job has used.
  int64_t contributions_before = 0;

  std::vector<FinishedRound> finished_rounds;  // Layers ascend.

  // NanPolicy::kSkip: newest verdicts that any member knew; steps ascend.
  std::vector<StepVerdict> verdicts;

  // Rank of the worker that gives joining workers the worker-owned layers; -1:
  // no worker needs them.
  int32_t donor = -1;

  bool operator==(const JobHistory&) const = default;
};

// Number of a job's first epoch, before which no round has closed.
inline constexpr uint64_t kFirstEpoch = 1;

// Facts and rules of one epoch of a job. They are equal on all members, and
// each member derives its behaviour from them. MakeJob makes it and checks it;
// afterwards it is constant, so any thread may read it. Its size is bounded: by
// kLayersMax, kWorkersMax and kServersMax.
//
// Members must not make decisions that differ from the job's. If a member
// rounds a value, draws a worker or cuts a frame by a rule of its own, its
// peers refuse its frames, or replicas drift apart.
struct Job {
  uint64_t id = 0;  // Random number, drawn by the coordinator; frames carry it.
  uint64_t epoch = 0;  // Number of this epoch, from kFirstEpoch.

  // Workers of the epoch; the index is a worker's position. Ranks ascend. A
  // rank is never given twice, so workers that join later have higher ranks,
  // and first steps ascend too.
  std::vector<EpochWorker> workers;
  Crew crew;        // Names of the workers, and the workers that have left.
  Seating seating;  // Hosts of the workers, round by round.

  std::vector<LayerSpec> layers;  // Layers, in forward order.
  std::vector<Route> routes;      // Route of each layer.
  Placement placement;            // Shard of each chunk of each layer.
  JobOptions options;             // Choices of the user that starts the job.

  BlockPool pool;  // Sparse job: its blocks.

  // Number of arrays of optimizer state of each layer. An array has as many
  // values as the layer has parameters. With OptimizerPlace::kServer it is
  // OptimizerStateCount, otherwise the number of arrays that the callers keep.
  int32_t state_arrays = 0;

  JobHistory history;  // Rounds and steps before this epoch.

  // Servers of each shard. At the start, server i is the primary of shard i
  // and, in a job with backups, the backup of the shard before it.
  std::vector<ShardServers> shard_servers;

  // Round of a checkpoint that was requested; kInitialRound: none was.
  int64_t checkpoint_round = kInitialRound;

  // Switch round: workers begin no later step, so that the next epoch may have
  // other routes. kInitialRound: this plan goes on.
  int64_t switch_round = kInitialRound;

  // Returns the model's layers: all but the block layer.
  absl::Span<const LayerSpec> model() const;

  // Number of shards.
  int shards() const { return placement.shards(); }
  // Number of workers in this epoch.
  int worker_count() const { return static_cast<int>(workers.size()); }

  // Returns the name of a member for messages: "worker NAME", or "shard 2". A
  // worker without a name is shown with its rank.
  std::string NameOf(PeerId member) const;

  // Returns the server that receives the frames of a chunk.
  PeerId ServerOf(const Chunk& chunk) const {
    return PeerId::Shard(shard_servers[chunk.shard].primary);
  }

  // True if `server` is the primary or the backup of a shard, and so a member.
  bool Holds(int server) const;

  // True if `peer` is a member of this epoch: a worker, a worker that has left,
  // or a server that holds a shard.
  bool IsMember(PeerId peer) const;

  // Returns the position of a worker, or -1 if it is not in this epoch.
  int PositionOf(int rank) const;

  // Returns the number of workers that contribute to `round`. They are the
  // workers at the first positions, 0 to this number - 1.
  int ContributorsOf(int64_t round) const;

  // Returns the line-up of `round`: its contributors by host.
  const Lineup& LineupOf(int64_t round) const {
    return seating.LineupOf(round);
  }

  // Returns the index of the worker that carries a unit of a layer, among the
  // `local_count` workers of a host: a slot for Lineup::Carrier. `unit` is the
  // index of a chunk if the layer uses the servers. On a ring, it is the index
  // of a frame of the layer. With factors, it is the seat of the worker that
  // made the factors. REQUIRES: local_count >= 1; the layer has the unit.
  int SlotOf(int layer, int64_t unit, int local_count) const;

  // Returns the rank of the worker that carries a unit of a layer for `host`, a
  // host in the line-up of `round`.
  int32_t CarrierOf(int layer, int64_t unit, int64_t round, int host) const;

  // Returns 1 / contributors: the factor that turns a sum of gradients into
  // their mean.
  float MeanScale(int64_t round) const {
    return 1.0f / static_cast<float>(ContributorsOf(round));
  }

  // True if a checkpoint is made of `round`: the shards save their chunks as of
  // it, and the worker at position 0 sends them the worker-owned layers.
  bool IsCheckpoint(int64_t round) const;
  // Returns the last round, `round` itself at the latest, of which a checkpoint
  // is made, in this epoch or an earlier one; nothing if there is none.
  std::optional<int64_t> LastCheckpoint(int64_t round) const;

  // True if this epoch is planned to end with switch_round.
  bool switches() const { return switch_round != kInitialRound; }
  // True if the shards get all layers as of switch_round. If the callers run
  // the optimizer, the shards do not need them: workers own all layers in any
  // plan.
  bool hands_over() const {
    return switches() && options.optimizer_place == OptimizerPlace::kServer;
  }
  // True if workers send the shards the worker-owned layers as of `round`, for
  // a checkpoint or for the next plan.
  bool IsSaved(int64_t round) const;

  // True if routes may change between `round` and the next round. In a sparse
  // job they may change only if all blocks travel in the next round. Once some
  // blocks do not travel, workers have residuals, which belong to the old
  // route.
  bool MaySwitchAfter(int64_t round) const;

  // True if workers vote on each step, and updates wait for the verdict.
  bool votes() const { return options.nan == NanPolicy::kSkip; }

  // True if values are searched for NaNs and infinities when they are added to
  // a sum, or by CheckValues.
  bool checks_contributions() const { return options.nan == NanPolicy::kFail; }

  // True if rounds may close without the contributions of all workers.
  bool partial() const { return options.rounds.quorum != Quorum::kAll; }
  // True if `round` waits for all workers nevertheless
  // (RoundOptions::resync_every).
  bool IsResync(int64_t round) const {
    const int64_t every = options.rounds.resync_every;
    return every > 0 && (round + 1) % every == 0;
  }
  // Returns the position of the initiator of `round`, with Quorum::kMajority:
  // the worker that closes the round by its contribution. All members draw the
  // same worker. If that worker is lost, the next epoch draws among the rest.
  // REQUIRES: the round has contributors.
  int InitiatorOf(int64_t round) const;

  // True if only some blocks of this layer travel in a round.
  bool IsSparse(int layer) const {
    return pool.layer >= 0 && layer != pool.layer;
  }
  // Number of blocks of the pool. REQUIRES: the job is sparse.
  int64_t block_count() const { return layers[pool.layer].parameters; }
  // Returns the number of blocks that travel in `round`, at least 1.
  int64_t BlocksIn(int64_t round) const;

  // Returns the rule by which contributions to a chunk, and its results, are
  // cut into frames. A frame of a sparse layer lies in one block.
  FrameGrid GridOf(const Chunk& chunk) const;
  // Returns the block of the chunk's first frame. REQUIRES: the layer is
  // sparse.
  int64_t FirstBlock(const Chunk& chunk) const;

  // True if frames of small layers share messages.
  bool fuses() const { return options.fusion_bytes != kNoFusion; }

  // True if workers request the result of a round when they need it.
  bool decoupled() const { return options.overlap == Overlap::kDecoupled; }

  // Returns Frame::priority of a frame. With decoupled rounds, the layers that
  // the next forward pass needs first go first. Otherwise a step waits for all
  // layers, and the order of backward keeps both directions of the network
  // busy.
  uint32_t SendPriority(const FrameHeader& header) const {
    return decoupled() ? header.layer : 0;
  }

  // Returns the wire type of a frame's values. It is the layer's wire type for
  // gradients, factors, sums and means that one host sends to another, and for
  // results of the servers' rounds. It is float32 for all other values, for
  // example the state of a layer, or frames between mates. kNone: the frame has
  // no values.
  WireType WireOf(const FrameHeader& header) const;

  // True if the layer is worker-owned: the workers have its newest parameters
  // and optimizer state. The shards have them as of base_round.
  bool WorkersOwn(int layer) const {
    return options.optimizer_place == OptimizerPlace::kWorker ||
           !UsesServers(routes[layer].scheme);
  }
};

// A job, shared by the machine that follows it, the driver that prints it, and
// messages on their way.
using JobPtr = std::shared_ptr<const Job>;

// Returns workers of ranks 0 to `count` - 1, all from step 0.
std::vector<EpochWorker> FirstWorkers(int count);

// Returns the servers of each shard at the start of a job: server i is the
// primary of shard i. With `backup`, the server after it is the backup.
std::vector<ShardServers> FirstShardServers(int shards, bool backup);

// Largest number of arrays of state that an optimizer may have.
inline constexpr int kStateArraysMax = 8;

// Checks a job that may have come over the network, and completes it: places
// its chunks on `shards` shards, seats its workers, adds the block layer of a
// sparse job, and sets state_arrays unless the callers run the optimizer. If
// `job` has no servers, sets FirstShardServers. `job` may be the result of an
// earlier MakeJob.
//
// Errors: kInvalidArgument, with the field and its value.
absl::StatusOr<JobPtr> MakeJob(Job job, int shards);

// Returns a header of this job and epoch. Its wire type, offset and payload
// length are not set: CutHeader sets them.
FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round);

// Returns `header` with the wire type, offset and length of frame `index` of
// `grid`.
FrameHeader CutHeader(const Job& job, FrameHeader header, const FrameGrid& grid,
                      int64_t index);
// Returns frame `index` of `values`, float32, which are cut by `grid`. The
// payload is a slice: no value is copied.
inline Frame CutFrame(const Job& job, const FrameHeader& header,
                      const FrameGrid& grid, int64_t index,
                      const Buffer& values) {
  return {CutHeader(job, header, grid, index),
          values.Slice(grid.Offset(index) * 4, grid.Length(index) * 4)};
}

// Calls `send` with each frame that carries `values`, in order.
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

// Checks what every frame of this epoch must satisfy on any member: job, epoch,
// sender, layer, round and wire type. Errors: kInvalidArgument, with both
// values: the caller must end the connection.
absl::Status CheckFrame(const Job& job, PeerId from, const FrameHeader& header);

// Returns the chunk that a frame belongs to. REQUIRES: CheckFrame. Errors:
// kInvalidArgument, the layer has no such chunk.
absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header);

}  // namespace nereus
