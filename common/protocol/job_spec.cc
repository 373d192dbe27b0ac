#include "common/protocol/job_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace nereus {
namespace {

// Two options that exclude each other, where both conditions hold.
struct Exclusion {
  const char* one;
  bool (*holds)(const JobOptions&);
  const char* other;
  bool (*other_holds)(const JobOptions&);
  const char* why;
};

bool IsPartial(const JobOptions& o) { return o.quorum != Quorum::kAll; }
bool IsSparse(const JobOptions& o) { return o.sparsity > 0; }
bool WorkersUpdate(const JobOptions& o) {
  return o.optimizer_place == OptimizerPlace::kWorker;
}
bool Skips(const JobOptions& o) { return o.nan == NanPolicy::kSkip; }

constexpr Exclusion kExclusions[] = {
    {"optimizer", WorkersUpdate, "quorum", IsPartial,
     "a worker that misses a round's mean would drift from the others"},
    {"nan", Skips, "quorum", IsPartial,
     "a step's verdict waits for everybody's vote"},
    {"deterministic", [](const JobOptions& o) { return o.deterministic; },
     "quorum", IsPartial, "who is in a round depends on when it came"},
    {"backup", [](const JobOptions& o) { return o.backup; }, "quorum",
     IsPartial,
     "a backup follows whole rounds, and has no part in the sum that is open"},
    {"resync", [](const JobOptions& o) { return o.resync_every > 0; }, "quorum",
     [](const JobOptions& o) { return o.quorum == Quorum::kEach; },
     "no round waits for anybody but by staleness"},
    {"optimizer", WorkersUpdate, "sparsity", IsSparse,
     "it would go on moving, by their momentum, parameters whose gradients are "
     "held back"},
    {"update",
     [](const JobOptions& o) { return o.optimizer.rule != UpdateRule::kSgd; },
     "sparsity", IsSparse, "what is held back is corrected for sgd's momentum"},
    {"nan", Skips, "sparsity", IsSparse,
     "what is held back has a step's gradient before its verdict"},
    {"quorum", IsPartial, "sparsity", IsSparse,
     "late contributions have other blocks than the round's"},
    {"loss-scale", [](const JobOptions& o) { return o.scale_loss; }, "nan",
     [](const JobOptions& o) { return !Skips(o); },
     "it looks for the scale at which gradients overflow, which must cost a "
     "step and not the job: --nan=skip"},
};

// OK if each option that `counts` is in its range, and no two that all members
// are told exclude each other.
absl::Status CheckOptions(const JobSpec& spec, bool told) {
  for (const JobOption& option : JobOptionTable()) {
    if (told && !option.is_told) continue;
    JobSpec scratch;
    const std::string text = option.get(spec);
    const absl::Status status = option.set(text, scratch);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option.flag(), ": ", status.message()));
  }
  const auto shown = [&](const char* name) {
    const JobOption& option = *FindJobOption(name);
    return absl::StrCat(option.flag(), "=", option.get(spec));
  };
  for (const Exclusion& each : kExclusions) {
    if (!each.holds(spec.options) || !each.other_holds(spec.options)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(shown(each.one), " does not go with ", shown(each.other),
                     ": ", each.why));
  }
  return absl::OkStatus();
}

}  // namespace

const JobOption* FindJobOption(absl::string_view name) {
  for (const JobOption& option : JobOptionTable()) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string DescribeJobSpec(const JobSpec& spec, bool told) {
  std::vector<std::string> texts;
  for (const JobOption& option : JobOptionTable()) {
    if ((told && !option.is_told) || !option.WhyIdle(spec).empty()) continue;
    texts.push_back(absl::StrCat(option.name, " ", option.get(spec)));
  }
  return absl::StrJoin(texts, ", ");
}

absl::Status JobSpec::Validate() const {
  NEREUS_RETURN_IF_ERROR(CheckOptions(*this, /*told=*/false));
  if (min_workers > workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--min-workers is ", min_workers, ", --workers only ", workers));
  }
  if (max_workers != 0 && max_workers < workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-workers is ", max_workers, ", --workers is ", workers));
  }
  if (options.backup && shards < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--backup=1 needs two servers or more: --servers is ", shards));
  }
  return RulesFor(options, rules).Validate();
}

absl::Status JobOptions::Validate() const {
  JobSpec spec;
  spec.options = *this;
  NEREUS_RETURN_IF_ERROR(CheckOptions(spec, /*told=*/true));
  const bool fits =
      fusion_bytes >= kNoFusion && fusion_bytes <= kFusionBytesMax;
  if (fits && (!tune_fusion || fusion_bytes != kNoFusion)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "fusion_bytes is ", fusion_bytes, ", must be from ", kNoFusion,
      ", none, to ", kFusionBytesMax, tune_fusion ? ", and not none" : ""));
}

}  // namespace nereus
