#include "common/protocol/job_spec.h"

#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Two options with values that exclude each other.
struct Exclusion {
  const char* one;  // Name of the first option.
  // True if the first option has such a value.
  bool (*holds)(const JobOptions&);
  const char* other;  // Name of the second option.
  // True if the second option has such a value.
  bool (*other_holds)(const JobOptions&);
  const char* why;  // Reason, for the error message.
};

// Conditions that several rows of kExclusions use.
bool IsPartial(const JobOptions& o) { return o.rounds.quorum != Quorum::kAll; }
bool IsSparse(const JobOptions& o) { return o.sparsity.share > 0; }
bool WorkersUpdate(const JobOptions& o) {
  return o.optimizer_place == OptimizerPlace::kWorker;
}
bool Skips(const JobOptions& o) { return o.nan == NanPolicy::kSkip; }

// All pairs of options that exclude each other. If a new option excludes
// another option, a row here is enough: CheckExclusions reads the rows.
constexpr Exclusion kExclusions[] = {
    {"optimizer", WorkersUpdate, "quorum", IsPartial,
     "a worker that misses the mean of a round would drift away from the "
     "others"},
    {"nan", Skips, "quorum", IsPartial,
     "the verdict on a step needs the votes of all workers"},
    {"deterministic", [](const JobOptions& o) { return o.deterministic; },
     "quorum", IsPartial,
     "the time of arrival decides which gradients a round has"},
    {"backup", [](const JobOptions& o) { return o.backup; }, "quorum",
     IsPartial,
     "a backup follows complete rounds, and does not have the sum of an open "
     "one"},
    {"resync", [](const JobOptions& o) { return o.rounds.resync_every > 0; },
     "quorum",
     [](const JobOptions& o) { return o.rounds.quorum == Quorum::kEach; },
     "then a round waits for other workers only because of --staleness"},
    {"optimizer", WorkersUpdate, "sparsity", IsSparse,
     "momentum in the workers would go on moving parameters whose gradients "
     "are not sent"},
    {"update",
     [](const JobOptions& o) { return o.optimizer.rule != UpdateRule::kSgd; },
     "sparsity", IsSparse,
     "the correction of gradients that are sent later knows only the momentum "
     "of sgd"},
    {"nan", Skips, "sparsity", IsSparse,
     "gradients that are sent later have the step's gradient before its "
     "verdict is known"},
    {"quorum", IsPartial, "sparsity", IsSparse,
     "a late contribution has other blocks than the round"},
    {"loss-scale", [](const JobOptions& o) { return o.scale_loss; }, "nan",
     [](const JobOptions& o) { return !Skips(o); },
     "the search for the scale makes gradients overflow, which must cost a "
     "step and not the job: use --nan=skip"},
};

// Returns OK if each option is in its range and no two options exclude each
// other. With `told`, does not check the ranges of options that the coordinator
// keeps from members.
absl::Status CheckOptions(const JobSpec& spec, bool told) {
  for (const JobOption& option : JobOptionTable()) {
    if (told && !option.is_sent_to_members) continue;
    // Only JobOption::set knows the option's range. So `get` writes the value
    // as text, and `set` reads this text.
    JobSpec scratch;
    const std::string text = option.get(spec);
    const absl::Status status = option.set(text, scratch);
    if (status.ok()) continue;
    return InvalidArgumentError(option.flag(), ": ", status.message());
  }
  return spec.CheckExclusions();
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
    if ((told && !option.is_sent_to_members) || !option.WhyIdle(spec).empty())
      continue;
    texts.push_back(absl::StrCat(option.name, " ", option.get(spec)));
  }
  return absl::StrJoin(texts, ", ");
}

JobSpec SpecOf(const JobOptions& options) {
  JobSpec spec;
  spec.options = options;
  spec.optimizer_by_worker = false;
  return spec;
}

absl::Status JobSpec::CheckExclusions() const {
  // Returns "--name=value" of an option.
  const auto shown = [&](const char* name) {
    const JobOption& option = *FindJobOption(name);
    return absl::StrCat(option.flag(), "=", option.get(*this));
  };
  for (const Exclusion& each : kExclusions) {
    if (!each.holds(options) || !each.other_holds(options)) continue;
    return InvalidArgumentError(shown(each.one), " does not go with ",
                                shown(each.other), ": ", each.why);
  }
  return absl::OkStatus();
}

// The coordinator calls this, and checks all fields. Members call
// JobOptions::Validate, because they do not get the other fields of a JobSpec.
absl::Status JobSpec::Validate() const {
  NEREUS_TRY(CheckOptions(*this, /*told=*/false));
  if (min_workers > workers) {
    return InvalidArgumentError("--min-workers is ", min_workers,
                                ", --workers only ", workers);
  }
  if (max_workers != 0 && max_workers < workers) {
    return InvalidArgumentError("--max-workers is ", max_workers,
                                ", --workers is ", workers);
  }
  if (options.backup && shards < 2) {
    return InvalidArgumentError(
        "--backup=1 needs two servers or more: --servers is ", shards);
  }
  return RulesFor(options, rules).Validate();
}

absl::Status JobOptions::Validate() const {
  NEREUS_TRY(CheckOptions(SpecOf(*this), /*told=*/true));
  // In a message to a member, fusion_bytes is a number of its own beside the
  // text of the option "fusion". So the check of that text above does not cover
  // every combination of fusion_bytes and tune_fusion.
  const bool fits =
      fusion_bytes >= kNoFusion && fusion_bytes <= kFusionBytesMax;
  if (fits && (!tune_fusion || fusion_bytes != kNoFusion)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError(
      "fusion_bytes is ", fusion_bytes, ", must be from ", kNoFusion,
      ", none, to ", kFusionBytesMax, tune_fusion ? ", and not none" : "");
}

}  // namespace nereus
