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

// Largest number of verdicts that a member keeps. Workers that vote are at most
// one step apart, so no member asks for an older verdict.
inline constexpr int kVerdictsMax = 4;

// Ranks of the servers that have a shard's chunks.
struct ShardServers {
  int32_t primary = 0;  // Server that runs the rounds of the chunks.
  int32_t backup = -1;  // Server that repeats each update; -1: no backup.
  // True if the backup has everything that ever left the primary, so that it
  // can become the primary.
  bool backup_is_current = false;

  bool operator==(const ShardServers&) const = default;
};

// Round of a layer that goes without servers, which some workers had done when
// the last epoch ended, and other workers had not. The workers
// that lack the round take its whole outcome from `source`. If they computed
// the round again with other contributors, replicas would differ.
struct FinishedRound {
  int32_t layer = 0;         // Index of the layer.
  int64_t round = 0;         // Round that some workers lack.
  int32_t source = 0;        // Rank of a worker that has done the round.
  int32_t contributors = 0;  // Number of contributions to the round, >= 1.

  bool operator==(const FinishedRound&) const = default;
};

// Pool of the blocks of a sparse job. It holds the layers of the model in
// backward order.
struct BlockPool {
  // Index of the block layer, which MakeJob adds after the model's layers. The
  // values of the block layer tell which blocks travel in the next round
  // (common/compute/blocks.h). -1: the job is not sparse.
  int layer = -1;
  int64_t block_length = 0;      // Number of values in a block.
  std::vector<int64_t> offsets;  // Index in the pool of a layer's first value.

  bool operator==(const BlockPool&) const = default;
};

// Workers that have left the job, and the names of all workers.
struct Crew {
  // Ranks of leavers, ascending: workers that have left, and stay members until
  // no other member needs their values.
  std::vector<int32_t> left_workers;
  // Names of the workers in Job::workers and left_workers, by rank, for
  // messages. Some names may be missing.
  std::map<int32_t, std::string> worker_names;

  bool operator==(const Crew&) const = default;
};

// State that an epoch takes over from the job's earlier epochs.
struct JobHistory {
  // Base round: the shards have every layer as of this round, worker-owned
  // layers included. At first the base round is kInitialRound. It becomes the
  // switch round when a plan ends, and the round of a checkpoint when the job
  // goes back to the checkpoint.
  int64_t base_round = kInitialRound;

  // First step of workers that join in this epoch. Usually it is a step that no
  // worker had begun when the coordinator made the epoch. If all workers drop
  // their values, it is the first step of every worker.
  int64_t first_step = 0;
  // Number of contributions in all steps before first_step. It tells which
  // examples the job has used.
  int64_t contributions_before = 0;

  // Rounds that some workers take from a source. Layers ascend.
  std::vector<FinishedRound> finished_rounds;

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
// each member derives its behaviour from them. MakeJob makes and checks a Job.
// After that the Job is constant, so any thread may read it. Its size is
// bounded by kLayersMax, kWorkersMax and kServersMax.
//
// A member must follow the rules of its Job. If a member rounds a value, draws
// a worker or cuts a frame by a rule of its own, its peers refuse its frames,
// or replicas drift apart.
struct Job {
  uint64_t id = 0;  // Random number, drawn by the coordinator; frames carry it.
  uint64_t epoch = 0;  // Number of this epoch, from kFirstEpoch.

  // Workers of the epoch, without leavers; the index is a worker's position.
  // Ranks ascend. The coordinator gives no rank twice, so workers that join
  // later have higher ranks, and first steps ascend too.
  std::vector<EpochWorker> workers;
  Crew crew;        // Names of the workers, and the workers that have left.
  Seating seating;  // Hosts of the workers, round by round.

  // Layers, in forward order. They are the same in each epoch, but for
  // LayerSpec::rows, which can change with the plan.
  std::vector<LayerSpec> layers;
  std::vector<Route> routes;  // Route of each layer.
  Placement placement;        // Shard of each chunk of each layer.
  JobOptions options;         // Choices of the user that starts the job.

  BlockPool pool;  // Blocks of a sparse job.

  // Number of arrays of optimizer state of each layer. An array has as many
  // values as the layer has parameters. With OptimizerPlace::kServer it is
  // OptimizerStateCount; with kWorker it is the number of arrays that each
  // caller keeps.
  int32_t state_arrays = 0;

  JobHistory history;  // State from earlier epochs.

  // Servers of each shard. At the start, server i is the primary of shard i
  // and, in a job with backups, the backup of the shard before it.
  std::vector<ShardServers> shard_servers;

  // Round of a checkpoint that the members make besides the regular ones: round
  // 0 in the first epoch of a job with checkpoints, later the round of a
  // checkpoint that a user or caller has requested. kInitialRound: none.
  int64_t checkpoint_round = kInitialRound;

  // Switch round: workers begin no step after it, so that the next epoch can
  // have other routes, and other rows of layers. kInitialRound: the plan of
  // this epoch goes on.
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

  // Returns the position of a worker, or -1 if `workers` does not have it.
  int PositionOf(int rank) const;

  // Returns the number of workers that contribute to `round`. They are the
  // workers at the first positions, 0 to this number - 1.
  int ContributorsOf(int64_t round) const;

  // Returns the line-up of `round`: its contributors by host.
  const Lineup& LineupOf(int64_t round) const {
    return seating.LineupOf(round);
  }

  // Returns the carrier of a unit of a layer, as an index among the
  // `local_count` workers of a host. If the layer uses the servers, `unit` is
  // the index of a chunk. On a ring, `unit` is the index of a frame of the
  // layer. With factors, `unit` is the seat of the worker that made the
  // factors. REQUIRES: local_count >= 1; the layer has the unit.
  int SlotOf(int layer, int64_t unit, int local_count) const;

  // Returns the rank of the carrier of a unit of a layer on `host`. `host` is a
  // number in the line-up of `round`; `unit` is as for SlotOf.
  int32_t CarrierOf(int layer, int64_t unit, int64_t round, int host) const;

  // Returns 1 / contributors: the factor that turns a sum of gradients into
  // their mean.
  float MeanScale(int64_t round) const {
    return 1.0f / static_cast<float>(ContributorsOf(round));
  }

  // True if the members make a checkpoint of `round`: the shards save their
  // chunks as of `round`, and the worker at position 0 sends the shards the
  // worker-owned layers.
  bool IsCheckpoint(int64_t round) const;
  // Returns the largest round <= `round` that is checkpoint_round or the round
  // of a regular checkpoint (JobOptions::checkpoint_every), in this epoch or an
  // earlier one. Returns nothing if there is none.
  std::optional<int64_t> LastCheckpoint(int64_t round) const;

  // True if this epoch has a switch round, after which the plan changes.
  bool switches() const { return switch_round != kInitialRound; }
  // True if the worker at position 0 hands the worker-owned layers over to the
  // shards, as of switch_round. If the callers run the optimizer, this is not
  // needed: workers own all layers in any plan.
  bool hands_over() const {
    return switches() && options.optimizer_place == OptimizerPlace::kServer;
  }
  // True if the worker at position 0 sends the shards the worker-owned layers
  // as of `round`, for a checkpoint or for the next plan.
  bool IsSaved(int64_t round) const;

  // True if the plan may change after `round`. In a sparse job it may change
  // only while all blocks travel in the next round. Once some blocks do not
  // travel, workers have residuals, which belong to the old routes.
  bool MaySwitchAfter(int64_t round) const;

  // True if workers vote on each step, and updates wait for the verdict.
  bool votes() const { return options.nan == NanPolicy::kSkip; }

  // True if members check gradients for NaNs and infinities when they add them
  // to a sum, or by CheckValues.
  bool checks_contributions() const { return options.nan == NanPolicy::kFail; }

  // True if the job has partial rounds: rounds that can close without the
  // contributions of all workers.
  bool partial() const { return options.rounds.quorum != Quorum::kAll; }
  // True if `round` waits for all workers although the job has partial rounds
  // (RoundOptions::resync_every).
  bool IsResync(int64_t round) const {
    const int64_t every = options.rounds.resync_every;
    return every > 0 && (round + 1) % every == 0;
  }
  // Returns the position of the initiator of `round`, with Quorum::kMajority:
  // the worker that closes the round by its contribution. All members draw the
  // same initiator. If the initiator dies, members draw another worker in the
  // next epoch. REQUIRES: the round has contributors.
  int InitiatorOf(int64_t round) const;

  // True if the layer is cut into blocks, not all of which travel in each
  // round: the job is sparse, and this is not the block layer.
  bool IsSparse(int layer) const {
    return pool.layer >= 0 && layer != pool.layer;
  }
  // Number of blocks of the pool. REQUIRES: the job is sparse.
  int64_t block_count() const { return layers[pool.layer].parameters; }
  // Returns the number of blocks that travel in `round`, at least 1.
  int64_t BlocksIn(int64_t round) const;

  // Returns the rule by which members cut contributions to a chunk, and its
  // results, into frames. Each frame of a sparse layer lies in one block.
  FrameGrid GridOf(const Chunk& chunk) const;
  // Returns the index in the pool of the block that has the chunk's first
  // frame. REQUIRES: the layer is sparse.
  int64_t FirstBlock(const Chunk& chunk) const;

  // Returns the constants of the updates of a round.
  OptimizerOptions OptimizerOf(int64_t round) const {
    return OptimizerAt(options.optimizer, options.rate_schedule, round);
  }

  // True if workers defer small layers, to send several of them together
  // (JobOptions::fusion_bytes).
  bool fuses() const { return options.fusion_bytes != kNoFusion; }

  // Returns Frame::priority of a frame: a layer goes before all layers that the
  // next forward pass needs later (Jayarajan et al., "Priority-based Parameter
  // Propagation", MLSys 2019). So results of late layers travel while nothing
  // more urgent does: the second halves of rounds overlap with forward (Zhang
  // et al., "DeAR", ICDCS 2023), and links are idle only if nothing is there
  // to send. The block layer of a sparse job goes first, because the others
  // wait for its result.
  uint32_t SendPriority(const FrameHeader& header) const {
    const auto layer = static_cast<int>(header.layer);
    return layer == pool.layer ? 0 : header.layer;
  }

  // Returns the wire type of a frame's values. It is the wire type of the
  // layer's route in kContribution, kFactors, kSum, kMean and kResult. It is
  // float32 in frames of all other kinds that have values. It is also float32
  // for three sorts of values in kContribution and kResult: the initial
  // parameters that the first worker sends, optimizer state, and worker-owned
  // layers as of base_round or from the donor. kNone: the frame has no values.
  WireType WireOf(const FrameHeader& header) const;

  // True if the layer is worker-owned: the workers have its newest parameters
  // and optimizer state. The shards have them as of base_round.
  bool WorkersOwn(int layer) const {
    return options.optimizer_place == OptimizerPlace::kWorker ||
           !UsesServers(routes[layer].scheme);
  }
};

// Job with several owners: the machine, the driver, and messages on their way.
using JobPtr = std::shared_ptr<const Job>;

// Returns the workers of ranks 0 to `count` - 1, each with first step 0.
std::vector<EpochWorker> FirstWorkers(int count);

// Returns the servers of each shard at the start of a job: server i is the
// primary of shard i. With `backup`, the next server is the backup of shard i;
// after the last server comes server 0.
std::vector<ShardServers> FirstShardServers(int shards, bool backup);

// Largest number of arrays of state that an optimizer may have.
inline constexpr int kStateArraysMax = 8;

// Checks a job, which may have come over the network, and completes it: sets
// `placement` for this number of shards, sets `seating`, adds the block layer
// of a sparse job, and sets `state_arrays` unless the callers run the
// optimizer. If `shard_servers` is empty, sets it to FirstShardServers. `job`
// may be a copy of an earlier result of MakeJob.
//
// Errors: kInvalidArgument, with the field and its value.
absl::StatusOr<JobPtr> MakeJob(Job job, int shards);

// Returns a header of this job and epoch. MakeHeader does not set the wire
// type, the offset and the payload's length: CutHeader sets them.
FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round);

// Returns `header` with the wire type, offset and length of frame `index` of
// `grid`.
FrameHeader CutHeader(const Job& job, FrameHeader header, const FrameGrid& grid,
                      int64_t index);
// Returns frame `index` of `values`, which are float32 and are cut by `grid`.
// The payload is a slice of `values`: no value is copied.
inline Frame CutFrame(const Job& job, const FrameHeader& header,
                      const FrameGrid& grid, int64_t index,
                      const Buffer& values) {
  return {CutHeader(job, header, grid, index),
          values.Slice(grid.Offset(index) * 4, grid.Length(index) * 4)};
}

// Calls `send` with each frame of `values`, in order. Without `grid`, the
// values are cut as dense values.
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

// Checks the fields of a header that every member checks in the same way: job,
// epoch, sender, layer, round and wire type. `from` is the peer at the other
// end of the connection. Errors: kInvalidArgument, with the value and the
// expected value: the caller must end the connection.
absl::Status CheckFrame(const Job& job, PeerId from, const FrameHeader& header);

// Returns the chunk that a frame belongs to. REQUIRES: CheckFrame. Errors:
// kInvalidArgument, the layer has no such chunk.
absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header);

}  // namespace nereus
