#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/compute/optimizer.h"
#include "common/plan/fusion.h"
#include "common/plan/planner.h"

namespace nereus {

// The last step that a job may have, and round: beyond what any job reaches,
// and far from overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 46;

// OK if min <= step <= kStepMax, or kInvalidArgument, with `name` and both.
absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min);

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

inline constexpr int64_t kBlockAuto = 0;
inline constexpr int64_t kBlockElementsMin = 256;

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

  // Of fusion (common/plan/fusion.h). What a round comes to does not depend on
  // it.
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

  // Only 1 - sparsity of the gradients' blocks travel in each round, the same
  // on all workers: those whose values, with what has been held back, are the
  // largest (GradientFlow's coarse-grained sparse communication). 0: all.
  double sparsity = 0;
  // Values in a block; kBlockAuto: as many as make a thousand blocks of the
  // model, but at most 2^15.
  int64_t block_elements = kBlockAuto;
  // In so many steps from the first one on, all blocks travel.
  int64_t dense_steps = 100;

  // Every shard has a copy on another server, which takes over when its own is
  // lost. Needs two shards.
  bool backup = false;

  // There is a folder for checkpoints.
  bool has_checkpoints = false;

  // A checkpoint is made of every round in whose step this many steps end; 0:
  // of none.
  int64_t checkpoint_every = 0;

  // Workers measure what layers and links take, and say so (Measured): for
  // plans by time.
  bool measure = false;

  // OK, or kInvalidArgument: what is out of range, or does not go together, and
  // why.
  absl::Status Validate() const;

  bool operator==(const JobOptions&) const = default;
};

// "sgd, learning rate 0.02, ...", for messages.
std::string DescribeOptimizer(const OptimizerOptions& optimizer);

// `rules`, and what `options` ask of every plan.
PlanRules RulesFor(const JobOptions& options, PlanRules rules);

}  // namespace nereus
