// Rows of JobOptionTable, in the order in which they are shown.
//
// Order to read: Number and Choice make most rows, from a field of JobSpec and
// its range or its choices. Name, WireOption, FusionOption, ChunkOption,
// BlockOption and PlaceOption make rows with a syntax of their own.
// OwnersOptions, OptimizerTable, RoundsTable and SafetyTable list the rows by
// subject, and MakeTable joins the lists. A new option is one row and a field
// of JobSpec or JobOptions: flags, job files, messages and documents follow
// from the table.

#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/printable.h"
#include "common/base/status.h"
#include "common/plan/cost_model.h"
#include "common/plan/fusion_tuner.h"
#include "common/protocol/frame.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/membership.h"

namespace nereus {
namespace {

// Shortest lease, in seconds. A member that lives must not count as dead if one
// heartbeat is late and another one is lost.
const double kLeaseSecondsMin = 3 * absl::ToDoubleSeconds(kHeartbeatInterval);

// Function that returns a reference to an option's value in a spec.
template <typename T>
using Field = T& (*)(JobSpec&);

// Returns an option's value in a constant spec.
template <typename T>
const T& In(Field<T> field, const JobSpec& spec) {
  return field(const_cast<JobSpec&>(spec));
}

// Returns the error for a text that is not a value of an option. `what` says
// what the text should be. The error shows at most 64 bytes of the text,
// escaped, because the text may come from the network.
absl::Status NoValue(absl::string_view text, absl::string_view what) {
  constexpr size_t kShownBytesMax = 64;
  return InvalidArgumentError("\"", Printable(text.substr(0, kShownBytesMax)),
                              "\" is not ", what);
}

bool Parse(absl::string_view text, int& value) {
  return absl::SimpleAtoi(text, &value);
}
bool Parse(absl::string_view text, int64_t& value) {
  return absl::SimpleAtoi(text, &value);
}
bool Parse(absl::string_view text, float& value) {
  return absl::SimpleAtof(text, &value);
}
bool Parse(absl::string_view text, double& value) {
  return absl::SimpleAtod(text, &value);
}

// Returns a text from which Parse reads exactly this number. Returns a short
// text such as "0.0005" if Parse reads the number from it, and all digits that
// are needed otherwise.
template <typename T>
std::string Exact(T value) {
  const std::string text = absl::StrCat(value);
  T parsed{};
  if (Parse(text, parsed) && parsed == value) return text;
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

// Tells whether the upper end of a range is part of the range.
enum class Top { kIncluded, kExcluded };

// Returns the row of an option whose values are the numbers from `low` to
// `high`.
template <typename T>
JobOption Number(std::string name, Field<T> field, T low, T high, Top top,
                 std::string help) {
  const std::string range =
      absl::StrCat("a number from ", Exact(low),
                   top == Top::kExcluded ? " to below " : " to ", Exact(high));
  JobOption option;
  option.name = std::move(name);
  option.values = std::is_integral_v<T> ? "INT" : "FLOAT";
  option.help = std::move(help);
  option.get = [field](const JobSpec& spec) { return Exact(In(field, spec)); };
  option.set = [=](absl::string_view text, JobSpec& spec) {
    T value{};
    // Each comparison with NaN is false, so NaN is refused.
    const bool fits =
        Parse(text, value) && value >= low &&
        (value < high || (value == high && top == Top::kIncluded));
    if (!fits) return NoValue(text, range);
    field(spec) = value;
    return absl::OkStatus();
  };
  return option;
}

// Returns the row of an option with these texts as values.
template <typename T>
JobOption Choice(std::string name, Field<T> field,
                 std::vector<std::pair<std::string, T>> choices,
                 std::string help) {
  JobOption option;
  option.name = std::move(name);
  const auto first = [](std::string* out, const auto& choice) {
    out->append(choice.first);
  };
  option.values = absl::StrJoin(choices, "|", first);
  option.help = std::move(help);
  option.get = [field, choices](const JobSpec& spec) {
    for (const auto& [text, value] : choices) {
      if (value == In(field, spec)) return text;
    }
    return std::string("unknown");
  };
  option.set = [=](absl::string_view text, JobSpec& spec) {
    for (const auto& [choice, value] : choices) {
      if (choice != text) continue;
      field(spec) = value;
      return absl::OkStatus();
    }
    return NoValue(
        text, absl::StrCat("one of ", absl::StrJoin(choices, ", ", first)));
  };
  return option;
}

JobOption Name() {
  JobOption option;
  option.name = "job-name";
  option.values = "NAME";
  option.help = "name of the job";
  option.get = [](const JobSpec& spec) { return spec.name; };
  option.set = [](absl::string_view text, JobSpec& spec) {
    spec.name = std::string(text);
    return absl::OkStatus();
  };
  return option;
}

JobOption SchemeOption() {
  std::vector<std::pair<std::string, std::optional<Scheme>>> choices = {
      {"auto", std::nullopt}};
  for (const auto& [scheme, name] : kSchemeNames) {
    choices.emplace_back(name, scheme);
  }
  return Choice<std::optional<Scheme>>(
      "scheme", [](JobSpec & s) -> auto& { return s.rules.forced; },
      std::move(choices),
      "how layers travel: by servers, by factors, around a ring or directly, "
      "for all layers that can; auto: the cheapest scheme for each layer");
}

JobOption WireOption() {
  JobOption option;
  option.name = "wire";
  option.values = "auto|fp32|bf16|fp16";
  option.help =
      "number format of gradients and parameters on the network: fp32, bf16, "
      "fp16, or auto (with --cost=time: bf16 for layers where that shortens an "
      "iteration); sums and updates use fp32 in any case";
  option.get = [](const JobSpec& spec) { return spec.rules.wire_name(); };
  option.set = [](absl::string_view text, JobSpec& spec) {
    const auto wire = ParseWireType(text);
    if (!wire.ok() && text != "auto") {
      return NoValue(text, "one of auto, fp32, bf16, fp16");
    }
    spec.rules.choose_wire = !wire.ok();
    spec.rules.wire = wire.value_or(WireType::kFloat32);
    return absl::OkStatus();
  };
  return option;
}

JobOption FusionOption() {
  JobOption option;
  option.name = "fusion";
  option.values = "off|auto|BYTES";
  option.help =
      "bytes of small layers that a worker collects and then sends together; "
      "auto: tune this number while training; off: send each layer by itself";
  option.get = [](const JobSpec& spec) {
    if (spec.options.tune_fusion) return std::string("auto");
    const int64_t bytes = spec.options.fusion_bytes;
    return bytes == kNoFusion ? "off" : absl::StrCat(bytes);
  };
  option.set = [](absl::string_view text, JobSpec& spec) {
    int64_t bytes = kNoFusion;
    if (text == "auto") {
      bytes = FusionTuner::kBytesFirst;
    } else if (text != "off" && (!absl::SimpleAtoi(text, &bytes) || bytes < 0 ||
                                 bytes > kFusionBytesMax)) {
      return NoValue(text, absl::StrCat("off, auto or a number from 0 to ",
                                        kFusionBytesMax));
    }
    spec.options.fusion_bytes = bytes;
    spec.options.tune_fusion = text == "auto";
    return absl::OkStatus();
  };
  return option;
}

// Returns `option` with `automatic` as the value of the text "0", too.
template <typename T>
JobOption OrZero(Field<T> field, T automatic, JobOption option) {
  const auto set = option.set;
  option.set = [=](absl::string_view text, JobSpec& spec) {
    if (text != "0") return set(text, spec);
    field(spec) = automatic;
    return absl::OkStatus();
  };
  return option;
}

JobOption ChunkOption() {
  constexpr Field<int64_t> kField = [](JobSpec & s) -> auto& {
    return s.options.chunk_bytes;
  };
  return OrZero<int64_t>(
      kField, kChunkAuto,
      Number<int64_t>("chunk", kField, kChunkBytesMin, kChunkBytesMax,
                      Top::kIncluded,
                      "bytes of the pieces of layers that servers add up; 0: "
                      "a 32nd of a server's part of the model"));
}

JobOption BlockOption() {
  constexpr Field<int64_t> kField = [](JobSpec & s) -> auto& {
    return s.options.sparsity.block_elements;
  };
  return OrZero<int64_t>(
      kField, kBlockAuto,
      Number<int64_t>("block", kField, kBlockElementsMin, kFrameElementsMax,
                      Top::kIncluded,
                      "values per block, with --sparsity; 0: a thousandth of "
                      "the model, at most 32768"));
}

JobOption PlaceOption() {
  JobOption option;
  option.name = "optimizer";
  option.values = "auto|server|worker";
  option.help =
      "place of the optimizer: server, or worker (the servers only average); "
      "auto: the place that the first worker expects";
  option.get = [](const JobSpec& spec) {
    return spec.optimizer_by_worker
               ? "auto"
               : std::string(OptimizerPlaceName(spec.options.optimizer_place));
  };
  option.set = [](absl::string_view text, JobSpec& spec) {
    const auto place = ParseOptimizerPlace(text);
    if (!place.ok() && text != "auto") {
      return NoValue(text, "one of auto, server, worker");
    }
    spec.optimizer_by_worker = !place.ok();
    spec.options.optimizer_place = place.value_or(OptimizerPlace::kServer);
    return absl::OkStatus();
  };
  return option;
}

JobOption ScheduleOption() {
  JobOption option;
  option.name = "learning-rate-schedule";
  option.values = "none|STEP:FACTOR[:CURVE],...";
  option.help =
      "factor of the learning rate by step: points, each with a step and its "
      "factor, to which a curve leads from the point before: linear (the "
      "default), cosine, or hold (the factor stays until this step). "
      "0:0.01,500:1,90000:0:cosine warms up for 500 steps";
  option.get = [](const JobSpec& spec) {
    return spec.options.rate_schedule.ToString();
  };
  option.set = [](absl::string_view text, JobSpec& spec) {
    spec.options.rate_schedule = NEREUS_TRY(RateSchedule::Parse(text));
    return absl::OkStatus();
  };
  return option;
}

// Conditions under which options have no effect (JobOption::idle). Each
// function returns the condition as text if the spec meets it, else "".
std::string UnlessVelocity(const JobSpec& spec) {
  const UpdateRule rule = spec.options.optimizer.rule;
  return HasMoments(rule) ? absl::StrCat("with --update=", UpdateRuleName(rule))
                          : "";
}

std::string UnlessMoments(const JobSpec& spec) {
  const UpdateRule rule = spec.options.optimizer.rule;
  return HasMoments(rule)
             ? ""
             : absl::StrCat("with --update=", UpdateRuleName(rule));
}

std::string UnlessPartial(const JobSpec& spec) {
  return spec.options.rounds.quorum == Quorum::kAll ? "with --quorum=all" : "";
}

std::string UnlessDense(const JobSpec& spec) {
  return spec.options.sparsity.share > 0 ? "with --sparsity" : "";
}

std::string UnlessSparse(const JobSpec& spec) {
  return spec.options.sparsity.share == 0 ? "without --sparsity" : "";
}

// Returns `option` with JobOption::idle set to `idle`.
JobOption If(std::string (*idle)(const JobSpec&), JobOption option) {
  option.idle = idle;
  return option;
}

// Returns the options that the coordinator does not send to members.
std::vector<JobOption> OwnersOptions() {
  return {
      Name(),
      Number<int>(
          "workers", [](JobSpec & s) -> auto& { return s.workers; }, 1,
          kWorkersMax, Top::kIncluded,
          "number of workers; the job starts when all have joined"),
      Number<int>(
          "min-workers", [](JobSpec & s) -> auto& { return s.min_workers; }, 1,
          kWorkersMax, Top::kIncluded,
          "smallest number of workers with which the job goes on; with fewer "
          "it waits"),
      Number<int>(
          "max-workers", [](JobSpec & s) -> auto& { return s.max_workers; }, 0,
          kWorkersMax, Top::kIncluded,
          "largest number of workers at a time; 0: the number of --workers"),
      Number<int>(
          "servers", [](JobSpec & s) -> auto& { return s.shards; }, 1,
          kServersMax, Top::kIncluded, "number of servers, one for each shard"),
      SchemeOption(),
      Choice<CostKind>(
          "cost", [](JobSpec & s) -> auto& { return s.rules.cost; },
          {{"bytes", CostKind::kBytes}, {"time", CostKind::kTime}},
          "what --scheme=auto minimises: bytes (Poseidon's rule), or the time "
          "of an iteration, from the speed of links and layers, measured or "
          "given"),
      WireOption(),
      Number<int>(
          "checkpoints-kept",
          [](JobSpec & s) -> auto& { return s.checkpoints_kept; }, 1, 1000000,
          Top::kIncluded, "number of checkpoints to keep, the newest ones"),
      Number<double>(
          "lease", [](JobSpec & s) -> auto& { return s.lease_seconds; },
          kLeaseSecondsMin, absl::ToDoubleSeconds(kLeaseMax), Top::kIncluded,
          "seconds of silence after which a member counts as dead"),
  };
}

// Returns the options of the optimizer. Ranges end at 1e30 so that numbers do
// not overflow a float32: adam divides the learning rate by 1 - beta1, which is
// at least 2^-24.
std::vector<JobOption> OptimizerTable() {
  constexpr float kLarge = 1e30F;
  return {
      PlaceOption(),
      Choice<UpdateRule>(
          "update",
          [](JobSpec & s) -> auto& { return s.options.optimizer.rule; },
          {{"sgd", UpdateRule::kSgd},
           {"nesterov", UpdateRule::kNesterov},
           {"adam", UpdateRule::kAdam},
           {"adamw", UpdateRule::kAdamW}},
          "rule of the optimizer: sgd (with momentum), nesterov (sgd with "
          "Nesterov's momentum), adam, or adamw (adam whose weight decay is "
          "not part of the gradient)"),
      Number<float>(
          "learning-rate", [](JobSpec & s) -> auto& {
            return s.options.optimizer.learning_rate;
          },
          0, kLarge, Top::kIncluded, "step size of the optimizer"),
      ScheduleOption(),
      If(UnlessVelocity,
         Number<float>(
             "momentum",
             [](JobSpec & s) -> auto& { return s.options.optimizer.momentum; },
             0, 1, Top::kExcluded, "momentum of sgd and nesterov")),
      Number<float>(
          "weight-decay",
          [](JobSpec & s) -> auto& { return s.options.optimizer.weight_decay; },
          0, kLarge, Top::kIncluded,
          "share of a parameter that is added to its gradient; adamw takes "
          "this share, times the learning rate, away from the parameter"),
      If(UnlessMoments,
         Number<float>(
             "beta1",
             [](JobSpec & s) -> auto& { return s.options.optimizer.beta1; }, 0,
             1, Top::kExcluded, "decay of the first moment of adam and adamw")),
      If(UnlessMoments, Number<float>(
                            "beta2", [](JobSpec & s) -> auto& {
                              return s.options.optimizer.beta2;
                            },
                            0, 1, Top::kExcluded,
                            "decay of the second moment of adam and adamw")),
      If(UnlessMoments, Number<float>(
                            "epsilon", [](JobSpec & s) -> auto& {
                              return s.options.optimizer.epsilon;
                            },
                            1e-30F, kLarge, Top::kIncluded,
                            "number that adam and adamw add to their divisor")),
  };
}

// Returns the options of rounds: overlap, quorum and sparsity.
std::vector<JobOption> RoundsTable() {
  return {
      Choice<Overlap>(
          "overlap", [](JobSpec & s) -> auto& { return s.options.overlap; },
          {{"none", Overlap::kNone}, {"wfbp", Overlap::kWaitFree}},
          "what travels while workers compute: wfbp: each layer once its "
          "backward is over, and its result as soon as nothing travels that "
          "the next forward needs earlier (wait-free backpropagation); none: "
          "nothing before the whole backward is over"),
      FusionOption(),
      If(UnlessDense, ChunkOption()),
      Choice<Quorum>(
          "quorum",
          [](JobSpec & s) -> auto& { return s.options.rounds.quorum; },
          {{"all", Quorum::kAll},
           {"majority", Quorum::kMajority},
           {"solo", Quorum::kSolo},
           {"each", Quorum::kEach}},
          "gradients that close a round: all: those of all workers; solo: the "
          "first one; majority: that of a worker drawn for each round; each: "
          "every gradient is an update by itself (SSP). With solo and "
          "majority, late gradients count in a later round (eager-SGD)"),
      If(UnlessPartial, Number<int64_t>(
                            "staleness", [](JobSpec & s) -> auto& {
                              return s.options.rounds.staleness;
                            },
                            0, kStalenessMax, Top::kIncluded,
                            "number of steps that a worker may be ahead of the "
                            "slowest one, with any --quorum but all")),
      If(UnlessPartial,
         Number<int64_t>(
             "resync",
             [](JobSpec & s) -> auto& { return s.options.rounds.resync_every; },
             0, kStepMax, Top::kIncluded,
             "number of rounds after which one waits for all workers, with "
             "--quorum=majority or solo; 0: none waits")),
      Number<double>(
          "sparsity",
          [](JobSpec & s) -> auto& { return s.options.sparsity.share; }, 0, 1,
          Top::kExcluded,
          "share of the gradients that is not sent in a round: only the "
          "largest blocks are, the same blocks on all workers; each worker "
          "keeps the rest and adds it later (GradientFlow's coarse-grained "
          "sparse communication)"),
      If(UnlessSparse, BlockOption()),
      If(UnlessSparse, Number<int64_t>(
                           "dense-steps", [](JobSpec & s) -> auto& {
                             return s.options.sparsity.dense_steps;
                           },
                           0, kStepMax, Top::kIncluded,
                           "number of first steps in which all blocks are "
                           "sent, with --sparsity")),
  };
}

// Returns the options for runs that must be exact or must survive failures.
std::vector<JobOption> SafetyTable() {
  return {
      Choice<bool>(
          "deterministic",
          [](JobSpec & s) -> auto& { return s.options.deterministic; },
          {{"off", false}, {"on", true}},
          "on: sum gradients in the order of ranks, which gives the same bits "
          "in every run"),
      Choice<bool>(
          "backup", [](JobSpec & s) -> auto& { return s.options.backup; },
          {{"0", false}, {"1", true}},
          "number of backups of each shard on other servers; with 1, the loss "
          "of a server costs no step"),
      Choice<NanPolicy>(
          "nan", [](JobSpec & s) -> auto& { return s.options.nan; },
          {{"fail", NanPolicy::kFail},
           {"skip", NanPolicy::kSkip},
           {"ignore", NanPolicy::kIgnore}},
          "effect of a gradient with a NaN or an infinity: fail: the job ends "
          "and names the worker and the layer; skip: all workers drop the "
          "step; ignore: gradients are not checked"),
      Choice<bool>(
          "loss-scale",
          [](JobSpec & s) -> auto& { return s.options.scale_loss; },
          {{"off", false}, {"dynamic", true}},
          "dynamic: workers multiply their losses by the largest power of two "
          "with which no gradient overflows, for gradients that are computed "
          "in fp16; needs --nan=skip"),
      Number<int64_t>(
          "checkpoint-every",
          [](JobSpec & s) -> auto& { return s.options.checkpoint_every; }, 0,
          kStepMax, Top::kIncluded,
          "number of steps between checkpoints; 0: only the first and the last "
          "step, and on request"),
  };
}

std::vector<JobOption> MakeTable() {
  std::vector<JobOption> table = OwnersOptions();
  for (auto* const part : {OptimizerTable, RoundsTable, SafetyTable}) {
    for (JobOption& option : part()) {
      option.is_sent_to_members = true;
      // For these three no check is needed here. When a coordinator restarts,
      // it checks --optimizer and --update itself, with a better message. The
      // fusion threshold does not change results.
      option.is_kept = option.name != "optimizer" && option.name != "update" &&
                       option.name != "fusion";
      table.push_back(std::move(option));
    }
  }
  return table;
}

}  // namespace

const std::vector<JobOption>& JobOptionTable() {
  static const auto* const table = new std::vector<JobOption>(MakeTable());
  return *table;
}

}  // namespace nereus
