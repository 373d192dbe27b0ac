#include "common/protocol/job_options.h"

#include <string>

#include "common/base/names.h"
#include "common/base/status.h"
#include "common/protocol/frame.h"

namespace nereus {
namespace {

constexpr Named<Quorum> kQuorumNames[] = {{Quorum::kAll, "all"},
                                          {Quorum::kMajority, "majority"},
                                          {Quorum::kSolo, "solo"},
                                          {Quorum::kEach, "each"}};

constexpr Named<Overlap> kOverlapNames[] = {{Overlap::kNone, "none"},
                                            {Overlap::kWaitFree, "wfbp"}};

}  // namespace

absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min) {
  if (step >= min && step <= kStepMax) return absl::OkStatus();
  return InvalidArgumentError(name, " is ", step, ", must be in [", min, ", ",
                              kStepMax, "]");
}

absl::string_view QuorumName(Quorum quorum) {
  return NameOf<kQuorumNames>(quorum);
}

absl::string_view OverlapName(Overlap overlap) {
  return NameOf<kOverlapNames>(overlap);
}

std::string DescribeOptimizer(const OptimizerOptions& optimizer) {
  std::string text = absl::StrCat(UpdateRuleName(optimizer.rule),
                                  ", learning rate ", optimizer.learning_rate);
  if (!HasMoments(optimizer.rule)) {
    absl::StrAppend(&text, ", momentum ", optimizer.momentum);
  } else {
    absl::StrAppend(&text, ", beta1 ", optimizer.beta1, ", beta2 ",
                    optimizer.beta2, ", epsilon ", optimizer.epsilon);
  }
  absl::StrAppend(&text, ", weight decay ", optimizer.weight_decay);
  return text;
}

int64_t ChunkBytesOf(const JobOptions& options) {
  return options.sparsity.share > 0 ? kChunkBytesMax : options.chunk_bytes;
}

PlanRules RulesFor(const JobOptions& options, PlanRules rules) {
  // A restriction applies if its field in PlanRules has a text, which is the
  // reason. The report on the plan shows the reason of a restriction that has
  // decided a route.
  if (options.rounds.quorum != Quorum::kAll) {
    rules.servers_only = absl::StrCat(
        "without servers a layer needs the contributions of all workers, not "
        "quorum ",
        QuorumName(options.rounds.quorum));
  }
  if (options.sparsity.share > 0) {
    rules.no_factors =
        absl::StrCat("factors have no blocks to hold back, sparsity ",
                     options.sparsity.share);
  }
  // Measurements differ from run to run. A plan that follows them would differ
  // too, and so would the bits of the results.
  if (options.deterministic) {
    rules.fixed =
        "deterministic keeps the first plan, of which all runs have "
        "the same bits";
  } else if (options.sparsity.share > 0) {
    rules.fixed = absl::StrCat("with sparsity ", options.sparsity.share,
                               " the plan cannot change after the dense steps");
  }
  rules.chunk_bytes = ChunkBytesOf(options);
  rules.fusion_bytes = options.fusion_bytes;
  rules.choose_fusion = options.tune_fusion;
  return rules;
}

}  // namespace nereus
