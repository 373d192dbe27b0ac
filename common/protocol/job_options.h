#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/compute/optimizer.h"
#include "common/plan/fusion.h"
#include "common/plan/planner.h"

namespace nereus {

// Largest number of a step or round. No job reaches it, and it keeps sums of
// steps far from overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 46;

// Returns OK if min <= step <= kStepMax; else kInvalidArgument, with `name`,
// the value and both bounds.
absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min);

// Reaction to a gradient that has a NaN or an infinity.
enum class NanPolicy {
  // "fail": the job ends; the error names the worker, the layer and the step.
  kFail,
  // "skip": no worker changes its parameters in that step.
  kSkip,
  // "ignore": gradients are not searched.
  kIgnore,
};

// Overlap of communication with the workers' computing. A round has two halves:
// first, contributions are reduced to one result; then all workers gather the
// result.
enum class Overlap {
  // "none": nothing is sent before the whole backward pass is over.
  kNone,
  // "wfbp": a layer is reduced as soon as its gradient exists, and gathered at
  // once. Zhang et al., "Poseidon", algorithm 2 (wait-free backpropagation).
  kWaitFree,
  // "dear": reduced like "wfbp", but gathered in forward order, during the next
  // forward pass. Zhang et al., "DeAR".
  kDecoupled,
};

// Returns the name of `overlap`, as --overlap takes it.
absl::string_view OverlapName(Overlap overlap);

// Contributions that close a round. A contribution that comes after its round
// has closed counts in the round that is open then, so no gradient is lost.
enum class Quorum {
  // "all": the contributions of all workers.
  kAll,
  // "majority": the contribution of one worker, which is drawn anew for each
  // round. On average, half of the other workers have contributed by then. Li
  // et al., "eager-SGD".
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

// kBlockAuto: value of SparsityOptions::block_elements with which MakeJob
// chooses the length. kBlockElementsMin: smallest length.
inline constexpr int64_t kBlockAuto = 0;
inline constexpr int64_t kBlockElementsMin = 256;

// Rules that decide when a round closes.
struct RoundOptions {
  Quorum quorum = Quorum::kAll;  // Contributions that close a round.

  // With any quorum but kAll: number of steps that a worker may be ahead of the
  // slowest worker, and number of rounds that a contribution may be late.
  int64_t staleness = 32;

  // With kMajority or kSolo: number of rounds of which one waits for all
  // workers (Job::IsResync). After it all workers have equal parameters, except
  // that a worker may get later parameters if an epoch ends before the answer
  // arrives. 0: no round waits for all workers.
  int64_t resync_every = 0;

  bool operator==(const RoundOptions&) const = default;
};

// Rules for gradients that are held back. The blocks with the largest values,
// residual included, are sent. All workers send the same blocks. Sun et al.,
// "GradientFlow", coarse-grained sparse communication.
struct SparsityOptions {
  // Share of the blocks, in [0, 1), that is held back in each round. 0: the job
  // is not sparse.
  double share = 0;
  // Values in a block, in [kBlockElementsMin, kFrameElementsMax]. kBlockAuto:
  // the power of two from 256 to 32,768 that cuts the model into about 1,000
  // blocks.
  int64_t block_elements = kBlockAuto;
  // Number of first steps in which all blocks travel.
  int64_t dense_steps = 100;

  bool operator==(const SparsityOptions&) const = default;
};

// Choices that all members must know. The coordinator gets them as flags or as
// a job file, and sends them to each member with the epoch. A value type. They
// are constant while the job runs, except fusion_bytes, which each epoch may
// change. JobOptionTable has the range, help and text of each choice that has a
// flag.
struct JobOptions {
  OptimizerOptions optimizer;  // Update rule and its constants.
  // Side that runs the optimizer: servers, or the workers' callers.
  OptimizerPlace optimizer_place = OptimizerPlace::kServer;

  // Adds contributions in the order of ranks, whatever their order of arrival,
  // so that two runs have the same bits. Costs a shard memory for payloads that
  // come before their turn (FrameSums).
  bool deterministic = false;

  NanPolicy nan = NanPolicy::kFail;  // Reaction to NaNs.

  // Workers scale their losses so that small fp16 gradients do not vanish, and
  // find the largest scale that does not overflow (LossScale). Needs
  // NanPolicy::kSkip, because the search makes a step overflow now and then.
  bool scale_loss = false;

  Overlap overlap = Overlap::kWaitFree;  // Time at which layers travel.

  // Fusion threshold: bytes that workers collect before they send layers
  // (common/plan/fusion.h). kNoFusion: workers do not wait. Results do not
  // depend on the threshold.
  int64_t fusion_bytes = kNoFusion;
  // True if fusion_bytes is only the first value, and the coordinator searches
  // for a better one while the job runs.
  bool tune_fusion = false;

  RoundOptions rounds = RoundOptions();  // End of each round.
  // Gradients that are held back.
  SparsityOptions sparsity = SparsityOptions();

  // True if every shard has a backup on another server, which takes over when
  // the primary is lost. Needs at least two shards.
  bool backup = false;

  // True if there is a folder for checkpoints.
  bool has_checkpoints = false;

  // Number of steps between checkpoints; 0: no regular checkpoints.
  int64_t checkpoint_every = 0;

  // True if workers measure their layers and links and report them (Measured),
  // for plans that minimise time.
  bool measure = false;

  // Returns OK, or kInvalidArgument: the message names the option that is out
  // of range, or two options that exclude each other, and the reason.
  absl::Status Validate() const;

  bool operator==(const JobOptions&) const = default;
};

// Returns the optimizer for messages: "sgd, learning rate 0.02, ...".
std::string DescribeOptimizer(const OptimizerOptions& optimizer);

// Returns `rules` with the restrictions that `options` put on every plan: for
// example, a partial quorum rules out rings.
PlanRules RulesFor(const JobOptions& options, PlanRules rules);

}  // namespace nereus
