#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/fusion.h"
#include "common/plan/placement.h"
#include "common/plan/planner.h"

namespace nereus {

// Lease of a job whose options name none, and limits of a lease in messages.
// The option `lease` has a higher lower limit.
inline constexpr absl::Duration kLeaseDefault = absl::Seconds(10);
inline constexpr absl::Duration kLeaseMin = absl::Milliseconds(1);
inline constexpr absl::Duration kLeaseMax = absl::Seconds(1000000);

// Largest number of a step or round. No job reaches this number, and sums of
// steps below it cannot overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 46;

// Returns OK if min <= step <= kStepMax; else kInvalidArgument, with `name`,
// the value and both bounds.
absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min);

// Reaction to a gradient that has a NaN or an infinity. The quoted word is the
// value of --nan.
enum class NanPolicy {
  // "fail": the job ends; the error names the worker, the layer and the step.
  kFail,
  // "skip": the step changes no parameters, on any worker or server.
  kSkip,
  // "ignore": members do not look for NaNs and infinities.
  kIgnore,
};

// Overlap of communication with the workers' computing. A round has two halves:
// in the first half, contributions are reduced to one result; in the second
// half, all workers get the result. The quoted word is the value of
// --overlap.
enum class Overlap {
  // "none": workers send no gradient before the whole backward pass is over.
  kNone,
  // "wfbp": the first half begins as soon as the layer's gradient exists.
  // Zhang et al., "Poseidon", algorithm 2 (wait-free backpropagation). The
  // second half follows as soon as nothing more urgent travels
  // (Job::SendPriority).
  kWaitFree,
};

// Returns the name of `overlap`, as --overlap takes it.
absl::string_view OverlapName(Overlap overlap);

// Contributions that a round waits for before it closes. A contribution that
// comes after its round has closed counts in the round that is open when it
// comes, so no gradient is lost. The quoted word is the value of --quorum.
enum class Quorum {
  // "all": the contributions of all workers.
  kAll,
  // "majority": the contribution of the initiator, a worker that the members
  // draw anew for each round. On average, half of the other workers have
  // contributed when the initiator does. Li et al., "eager-SGD".
  kMajority,
  // "solo": the first contribution. Li et al., "eager-SGD".
  kSolo,
  // "each": every contribution is an update by itself. With a bound on
  // staleness this is stale-synchronous parallel training; without a bound it
  // is asynchronous training.
  kEach,
};

// Returns the name of `quorum`, as --quorum takes it.
absl::string_view QuorumName(Quorum quorum);

// Value of RoundOptions::staleness that means "no bound".
inline constexpr int64_t kStalenessMax = kStepMax;

// Value of SparsityOptions::block_elements that lets MakeJob choose the length.
inline constexpr int64_t kBlockAuto = 0;
// Smallest number of values in a block.
inline constexpr int64_t kBlockElementsMin = 256;

// Rules that decide when a round closes.
struct RoundOptions {
  Quorum quorum = Quorum::kAll;  // Contributions that close a round.

  // With any quorum but kAll: largest number of steps by which a worker may be
  // ahead of the slowest worker. Also the largest number of rounds by which a
  // contribution may be late: after them, a round waits for it.
  int64_t staleness = 32;

  // With kMajority or kSolo: one in this number of rounds waits for the
  // contributions of all workers (Job::IsResync). After such a round, all
  // workers have equal parameters. One exception: if an epoch ends before a
  // worker has the round's result, the worker can get the parameters of a later
  // round. 0: no round waits for all workers.
  int64_t resync_every = 0;

  bool operator==(const RoundOptions&) const = default;
};

// Rules for gradients that workers hold back. Workers send the blocks with the
// largest norms, and count the residual in the norm. All workers send the same
// blocks. Sun et al., "GradientFlow", coarse-grained sparse communication.
struct SparsityOptions {
  // Share of the blocks, in [0, 1), that workers hold back in each round. 0:
  // the job is not sparse.
  double share = 0;
  // Number of values in a block, in [kBlockElementsMin, kFrameElementsMax].
  // kBlockAuto: the smallest power of two, from 256 to 32,768, that cuts the
  // model into at most 1,000 blocks; 32,768 for a model above 32,768,000
  // values, which then has more blocks.
  int64_t block_elements = kBlockAuto;
  // Number of first steps in which all blocks travel.
  int64_t dense_steps = 100;

  bool operator==(const SparsityOptions&) const = default;
};

// Choices of the job's owner that all members must know. The coordinator gets
// them as flags or from a job file, and sends them to each member with each
// epoch. While the job runs, only fusion_bytes changes: each epoch can have
// another value. JobOptionTable has the range and the help text of each choice
// that has a flag. A value type.
struct JobOptions {
  OptimizerOptions optimizer;       // Update rule and its constants.
  RateSchedule rate_schedule = {};  // Factor of the learning rate, by step.
  // Side that runs the optimizer: servers, or the workers' callers.
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;

  // True: members add contributions in the order of ranks, whatever their order
  // of arrival, so that two runs have the same bits. A shard then needs memory
  // for payloads that come before their turn (FrameSums).
  bool deterministic = false;

  NanPolicy nan = NanPolicy::kFail;  // Reaction to NaNs.

  // True: workers multiply their losses by a scale, so that small fp16
  // gradients do not become zero. They search for the largest scale with which
  // no gradient overflows (LossScale). Needs NanPolicy::kSkip, because the
  // search makes the gradients of a step overflow now and then.
  bool scale_loss = false;

  Overlap overlap = Overlap::kWaitFree;  // Time at which layers travel.

  // Length of a full chunk (Placement::Make), in a job that is not sparse.
  int64_t chunk_bytes = kChunkAuto;

  // Fusion threshold: a worker defers pushed layers until they have this number
  // of bytes together (common/plan/fusion.h). kNoFusion: a worker defers no
  // layer for this reason. Results do not depend on the threshold.
  int64_t fusion_bytes = kNoFusion;
  // True if the coordinator searches for the best fusion_bytes while the job
  // runs. The job then starts with the value of fusion_bytes above.
  bool tune_fusion = false;

  // Rules that decide when a round closes.
  RoundOptions rounds = RoundOptions();
  // Rules for gradients that workers hold back.
  SparsityOptions sparsity = SparsityOptions();

  // True if every shard has a backup on another server, which becomes the
  // primary when the primary is lost. Needs at least two shards.
  bool backup = false;

  // True if there is a folder for checkpoints.
  bool has_checkpoints = false;

  // Number of steps between checkpoints; 0: no regular checkpoints.
  int64_t checkpoint_every = 0;

  // True if workers measure the times of their layers and the speed of their
  // links, and report both (Measured), for plans that minimise time.
  bool measure = false;

  // Returns OK, or kInvalidArgument: the message names the option that is out
  // of range, or two options that exclude each other, and the reason.
  absl::Status Validate() const;

  bool operator==(const JobOptions&) const = default;
};

// Returns a description of the optimizer for messages: "sgd, learning rate
// 0.02, ...".
std::string DescribeOptimizer(const OptimizerOptions& optimizer);

// Returns the `chunk_bytes` of the job's placements (Placement::Make). The
// layer with the norms of a sparse job's blocks is one chunk.
int64_t ChunkBytesOf(const JobOptions& options);

// Returns `rules` with the restrictions that `options` put on every plan. For
// example, no layer can go around a ring in a job with partial rounds.
PlanRules RulesFor(const JobOptions& options, PlanRules rules);

}  // namespace nereus
