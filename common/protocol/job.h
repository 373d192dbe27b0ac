#ifndef NEREUS_COMMON_PROTOCOL_JOB_H_
#define NEREUS_COMMON_PROTOCOL_JOB_H_

#include <cstdint>
#include <memory>
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

namespace nereus {

// The last step that a job may have, and round: beyond what any job reaches,
// and far from overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 46;

// Where the optimizer runs.
enum class OptimizerPlace {
  kServer,  // "server": parameters and optimizer state live on the shards.
  kWorker,  // "worker": the shards only average; the caller's optimizer runs.
};

absl::string_view OptimizerPlaceName(OptimizerPlace place);
absl::StatusOr<OptimizerPlace> ParseOptimizerPlace(absl::string_view name);

// What is done about a gradient that has a NaN or an infinity.
enum class NanPolicy {
  kFail,    // "fail": the job ends, naming the worker, the layer and the step.
  kSkip,    // "skip": nobody's parameters change by that step.
  kIgnore,  // "ignore": nothing; gradients are not looked at.
};

absl::string_view NanPolicyName(NanPolicy policy);

// What goes over the network while workers compute. A round has two halves: it
// is reduced to one outcome, and that is gathered by all workers.
enum class Overlap {
  kNone,       // "none": nothing is sent before the whole backward is over.
  kWaitFree,   // "wfbp": a layer is reduced as soon as its gradient is there,
               // and gathered at once. Poseidon, GradientFlow.
  kDecoupled,  // "dear": the same, but layers are gathered in forward order,
               // while the next forward is under way. Zhang et al., "DeAR".
};

absl::string_view OverlapName(Overlap overlap);

// Whose contributions close a round. Late ones count in the round that is open
// when they come, so none is lost, and their workers wait for nothing.
enum class Quorum {
  kAll,       // "all": everybody's.
  kMajority,  // "majority": that of one worker, drawn for each round; on
              // average half of the others come before it. Li et al.,
              // "eager-SGD".
  kSolo,      // "solo": the first one. The same.
  kEach,      // "each": each contribution is an update by itself. Stale
              // synchronous parallel; without a bound, asynchronous.
};

absl::string_view QuorumName(Quorum quorum);

// JobOptions::staleness: none.
inline constexpr int64_t kStalenessMax = kStepMax;

inline constexpr int64_t kNoFusion = -1;
inline constexpr int64_t kFusionBytesMax = int64_t{1} << 30;

// What the job's owner chooses, once for all members: the coordinator's flags.
struct JobOptions {
  OptimizerOptions optimizer;
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;

  // Add contributions in the order of their ranks, whatever the order in which
  // they arrive. Costs a shard the payloads that come early: up to one chunk
  // per worker and open round.
  bool deterministic = false;

  NanPolicy nan = NanPolicy::kFail;

  // Workers scale their losses, up to what overflows now and then (LossScale):
  // with NanPolicy::kSkip.
  bool scale_loss = false;

  Overlap overlap = Overlap::kWaitFree;

  // Small frames share messages, and a worker holds layers back until so many
  // bytes of gradients can go at once (GradientFlow's lazy all-reduce);
  // kNoFusion: each frame is a message, and goes at once. What a round comes to
  // does not depend on it.
  int64_t fusion_bytes = kNoFusion;
  // fusion_bytes is where the coordinator begins to look for a better one.
  bool tune_fusion = false;

  Quorum quorum = Quorum::kAll;

  // With any other: a worker is at most so many steps ahead of the slowest one,
  // and a contribution at most so many rounds late.
  int64_t staleness = 32;

  // The same: every so many rounds, one waits for everybody, so that all
  // workers have the same parameters after it, but for those whose answer is
  // lost with an epoch, who get later ones; 0: never.
  int64_t resync_every = 0;

  // Every shard has a copy on another server, which takes over when its own is
  // lost. Needs two shards.
  bool backup = false;

  // A checkpoint is made of every round in whose step this many steps end; 0:
  // of none.
  int64_t checkpoint_every = 0;

  // OK, or kInvalidArgument: what is out of range, or does not go together, and
  // why.
  absl::Status Validate() const;

  bool operator==(const JobOptions&) const = default;
};

// `rules`, and what `options` ask of every plan.
PlanRules RulesFor(const JobOptions& options, PlanRules rules);

// A worker of an epoch.
struct WorkerSeat {
  int32_t rank = 0;
  // The first step, and round of every layer, that it takes part in.
  int64_t first_step = 0;

  bool operator==(const WorkerSeat&) const = default;
};

// What the votes on a step came to, with NanPolicy::kSkip.
struct StepVerdict {
  int64_t step = 0;
  bool skipped = false;

  bool operator==(const StepVerdict&) const = default;
};

// As many are kept: workers are at most a step apart.
inline constexpr int kVerdictsMax = 4;

// Who holds a shard's chunks, by the ranks of servers.
struct ShardHolders {
  int32_t server = 0;  // Runs their rounds.
  int32_t copy = -1;   // Follows each round; -1: nobody does.
  // Nothing has come out of the server that the copy has not: it can take over.
  bool whole = false;

  bool operator==(const ShardHolders&) const = default;
};

// A round of a layer between workers that some have finished and others have
// not, when an epoch ends: those get all that it came to from `holder`, and so
// the same as everybody.
struct FinishedRound {
  int32_t layer = 0;
  int64_t round = 0;
  int32_t holder = 0;        // The rank of a worker that has finished it.
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
  std::vector<WorkerSeat> workers;
  // Ranks of workers that have left, ascending; they stay until nobody needs
  // what they hold.
  std::vector<int32_t> leavers;

  std::vector<LayerSpec> layers;  // In forward order.
  std::vector<Route> routes;      // By layer.
  Placement placement;
  JobOptions options;

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
  std::vector<ShardHolders> holders;

  // The rank of the worker that gives others the layers that workers own; -1:
  // none has to.
  int32_t owner = -1;

  // A checkpoint of this round was asked for; kInitialRound: of none.
  int64_t checkpoint_round = kInitialRound;

  int shards() const { return placement.shards(); }
  int worker_count() const { return static_cast<int>(workers.size()); }

  // The member to which a chunk's frames go.
  PeerId ServerOf(const Chunk& chunk) const {
    return PeerId::Shard(holders[chunk.shard].server);
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

  // Whether workers vote on each step, and nothing is updated before.
  bool votes() const { return options.nan == NanPolicy::kSkip; }

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

  // Whether frames share messages.
  bool fuses() const { return options.fusion_bytes != kNoFusion; }

  // Whether workers ask for a round's outcome when they need it.
  bool decoupled() const { return options.overlap == Overlap::kDecoupled; }

  // Frame::rank of a frame: with decoupled rounds, layers that the next forward
  // needs first go first. Without, a step waits for all of them, and the order
  // in which backward makes them keeps both ways of the network busy.
  uint32_t SendRank(const FrameHeader& header) const {
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
           PassesServers(routes[layer].scheme);
  }
};

// Shared between the machine that follows it and the driver that prints it.
using JobPtr = std::shared_ptr<const Job>;

// Workers 0 to `count` - 1, all from step 0.
std::vector<WorkerSeat> FirstWorkers(int count);

// As it is while all servers are there.
std::vector<ShardHolders> FirstHolders(int shards, bool backup);

// The most arrays of state that an optimizer may have.
inline constexpr int kStateArraysMax = 8;

// Checks a job whose parts came over the network, places its chunks on `shards`
// shards, which have their FirstHolders if it names none, and counts the state
// of an optimizer of ours. Errors: kInvalidArgument, naming the field and its
// value.
absl::StatusOr<JobPtr> MakeJob(Job job, int shards);

// A header of this job: everything but kind, layer, chunk, round and the
// payload's place is fixed.
FrameHeader MakeHeader(const Job& job, PeerId sender, FrameKind kind, int layer,
                       int64_t chunk, int64_t round);

// Adds to `send`, one by one, the frames that carry `values`, float32: `header`
// with wire type, offset and length filled in, and a slice of `values`.
template <typename Send>
void CutIntoFrames(const Job& job, FrameHeader header, const Buffer& values,
                   Send send) {
  header.wire = job.WireOf(header);
  const int64_t elements = values.float_count();
  for (int64_t index = 0; index < FrameCount(elements); ++index) {
    const int64_t offset = index * kFrameElementsMax;
    const int64_t count = FrameElements(elements, index);
    header.offset = static_cast<uint32_t>(offset);
    header.payload_bytes =
        static_cast<uint32_t>(count * WireBytes(header.wire));
    send(Frame{header, values.Slice(offset * 4, count * 4)});
  }
}

// What every frame of this epoch must satisfy on any member: job, epoch,
// sender, layer. Errors: kInvalidArgument, with both values.
absl::Status CheckFrame(const Job& job, PeerId from, const FrameHeader& header);

// The chunk that a frame means. Errors: kInvalidArgument.
absl::StatusOr<Chunk> FindChunk(const Job& job, const FrameHeader& header);

}  // namespace nereus

#endif  // NEREUS_COMMON_PROTOCOL_JOB_H_
