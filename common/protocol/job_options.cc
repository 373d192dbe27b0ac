#include "common/protocol/job_options.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/frame.h"

namespace nereus {
namespace {

// What does not go together with rounds that close without some.
absl::Status CheckPartial(const JobOptions& options) {
  const std::string quorum =
      absl::StrCat("quorum ", QuorumName(options.quorum));
  const auto refuse = [&](absl::string_view what, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " does not go with ", quorum, ": ", why));
  };
  if (options.optimizer_place == OptimizerPlace::kWorker) {
    return refuse("optimizer worker",
                  "a worker that misses a round's mean would drift from the "
                  "others");
  }
  if (options.nan == NanPolicy::kSkip) {
    return refuse("nan skip", "a step's verdict waits for everybody's vote");
  }
  if (options.deterministic) {
    return refuse("deterministic", "who is in a round depends on when it came");
  }
  if (options.backup) {
    return refuse(
        "backup",
        "a copy follows whole rounds, and has no part in the sum that "
        "is open");
  }
  if (options.quorum == Quorum::kEach && options.resync_every > 0) {
    return refuse("resync", "no round waits for anybody but by staleness");
  }
  if (options.staleness < 0 || options.staleness > kStalenessMax ||
      options.resync_every < 0 || options.resync_every > kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("staleness is ", options.staleness, " and resync_every ",
                     options.resync_every, ", must be in [0, ", kStepMax, "]"));
  }
  return absl::OkStatus();
}

// What does not go together with blocks that are held back.
absl::Status CheckSparsity(const JobOptions& options) {
  const auto refuse = [&](absl::string_view what, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " does not go with sparsity ", options.sparsity, ": ", why));
  };
  if (!(options.sparsity >= 0 && options.sparsity < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sparsity is ", options.sparsity, ", must be from 0 to below 1"));
  }
  if (options.block_elements != kBlockAuto &&
      (options.block_elements < kBlockElementsMin ||
       options.block_elements > kFrameElementsMax)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "block_elements is ", options.block_elements, ", must be from ",
        kBlockElementsMin, " to ", kFrameElementsMax));
  }
  NEREUS_RETURN_IF_ERROR(CheckStep("dense_steps", options.dense_steps, 0));
  if (options.sparsity == 0) return absl::OkStatus();
  if (options.optimizer_place == OptimizerPlace::kWorker) {
    return refuse("optimizer worker",
                  "it would go on moving, by their momentum, parameters whose "
                  "gradients are held back");
  }
  if (options.optimizer.rule != UpdateRule::kSgd) {
    return refuse(
        absl::StrCat("optimizer ", UpdateRuleName(options.optimizer.rule)),
        "what is held back is corrected for sgd's momentum");
  }
  if (options.nan == NanPolicy::kSkip) {
    return refuse("nan skip",
                  "what is held back has a step's gradient before its verdict");
  }
  if (options.quorum != Quorum::kAll) {
    return refuse(absl::StrCat("quorum ", QuorumName(options.quorum)),
                  "late contributions have other blocks than the round's");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStep(absl::string_view name, int64_t step, int64_t min) {
  if (step >= min && step <= kStepMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", step, ", must be in [", min, ", ", kStepMax, "]"));
}

absl::string_view NanPolicyName(NanPolicy policy) {
  switch (policy) {
    case NanPolicy::kFail:
      return "fail";
    case NanPolicy::kSkip:
      return "skip";
    case NanPolicy::kIgnore:
      return "ignore";
  }
  return "unknown";
}

absl::string_view QuorumName(Quorum quorum) {
  switch (quorum) {
    case Quorum::kAll:
      return "all";
    case Quorum::kMajority:
      return "majority";
    case Quorum::kSolo:
      return "solo";
    case Quorum::kEach:
      return "each";
  }
  return "unknown";
}

absl::string_view OverlapName(Overlap overlap) {
  switch (overlap) {
    case Overlap::kNone:
      return "none";
    case Overlap::kWaitFree:
      return "wfbp";
    case Overlap::kDecoupled:
      return "dear";
  }
  return "unknown";
}

absl::Status JobOptions::Validate() const {
  NEREUS_RETURN_IF_ERROR(optimizer.Validate());
  NEREUS_RETURN_IF_ERROR(CheckStep("checkpoint_every", checkpoint_every, 0));
  NEREUS_RETURN_IF_ERROR(CheckSparsity(*this));
  if (fusion_bytes < kNoFusion || fusion_bytes > kFusionBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("fusion_bytes is ", fusion_bytes, ", must be from ",
                     kNoFusion, ", none, to ", kFusionBytesMax));
  }
  if (quorum != Quorum::kAll) NEREUS_RETURN_IF_ERROR(CheckPartial(*this));
  if (tune_fusion && fusion_bytes == kNoFusion) {
    return absl::InvalidArgumentError(
        "fusion is to be tuned, and is off: it needs bytes to begin with");
  }
  if (scale_loss && nan != NanPolicy::kSkip) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scaling looks for the scale at which gradients "
                     "overflow, which must cost a step and not the job: nan "
                     "is ",
                     NanPolicyName(nan), ", must be skip"));
  }
  return absl::OkStatus();
}

std::string DescribeOptimizer(const OptimizerOptions& optimizer) {
  std::string text = absl::StrCat(UpdateRuleName(optimizer.rule),
                                  ", learning rate ", optimizer.learning_rate);
  if (optimizer.rule == UpdateRule::kSgd) {
    absl::StrAppend(&text, ", momentum ", optimizer.momentum);
  } else {
    absl::StrAppend(&text, ", beta1 ", optimizer.beta1, ", beta2 ",
                    optimizer.beta2, ", epsilon ", optimizer.epsilon);
  }
  absl::StrAppend(&text, ", weight decay ", optimizer.weight_decay);
  return text;
}

std::string DescribeOptions(const JobOptions& options) {
  std::string text = absl::StrCat(
      "optimizer on the ", OptimizerPlaceName(options.optimizer_place), "s (",
      DescribeOptimizer(options.optimizer), "), overlap ",
      OverlapName(options.overlap), ", quorum ", QuorumName(options.quorum));
  if (options.quorum != Quorum::kAll) {
    absl::StrAppend(&text, " with staleness ", options.staleness,
                    " and resync ", options.resync_every);
  }
  if (options.fusion_bytes != kNoFusion) {
    absl::StrAppend(&text, ", fusion ", options.fusion_bytes, " bytes",
                    options.tune_fusion ? " at first" : "");
  }
  if (options.sparsity > 0) {
    absl::StrAppend(&text, ", sparsity ", options.sparsity, " after ",
                    options.dense_steps, " dense steps");
  }
  absl::StrAppend(&text, ", nan ", NanPolicyName(options.nan),
                  options.scale_loss ? ", dynamic loss scale" : "",
                  options.deterministic ? ", deterministic" : "", ", backup ",
                  options.backup ? 1 : 0);
  if (options.checkpoint_every > 0) {
    absl::StrAppend(&text, ", a checkpoint every ", options.checkpoint_every,
                    " steps");
  }
  return text;
}

PlanRules RulesFor(const JobOptions& options, PlanRules rules) {
  if (options.quorum != Quorum::kAll) {
    rules.servers_only =
        absl::StrCat("between workers everybody is needed, not quorum ",
                     QuorumName(options.quorum));
  }
  if (options.sparsity > 0) {
    rules.no_factors = absl::StrCat("factors have no blocks, of which ",
                                    options.sparsity, " are held back");
  }
  if (options.deterministic) {
    rules.fixed =
        "deterministic keeps the first plan, of which all runs have "
        "the same bits";
  } else if (options.sparsity > 0) {
    rules.fixed = absl::StrCat(
        "the plan stays as it is once blocks are held back, sparsity ",
        options.sparsity);
  }
  rules.fusion_bytes = options.fusion_bytes;
  rules.choose_fusion = options.tune_fusion;
  return rules;
}

}  // namespace nereus
