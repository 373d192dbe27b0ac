#include "common/flags/flags.h"

#include <cctype>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/version.h"
#include "common/plan/fusion_tuner.h"

namespace nereus {

std::string FlagVariable(const std::string& name) {
  std::string variable = "NEREUS_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return variable;
}

CLI::Option* AddNamedChoice(CLI::App& app, const std::string& name,
                            const std::vector<std::string>& choices,
                            const std::string& value,
                            std::function<void(const std::string&)> set,
                            const std::string& help) {
  const std::string flag = "--" + name;
  return app
      .add_option_function<std::string>(
          flag,
          [flag, choices, set = std::move(set)](const std::string& given) {
            if (absl::c_linear_search(choices, given)) return set(given);
            throw CLI::ValidationError(
                flag, absl::StrCat("\"", given, "\" is not one of ",
                                   absl::StrJoin(choices, ", ")));
          },
          help)
      ->envname(FlagVariable(name))
      ->type_name(absl::StrJoin(choices, "|"))
      ->default_str(value);
}

void AddCommonFlags(CLI::App& app, const std::string& program,
                    LogLevel& log_level) {
  app.set_version_flag("--version", program + " " + kVersion);
  AddChoice(app, "log-level", log_level,
            {{"debug", LogLevel::kDebug},
             {"info", LogLevel::kInfo},
             {"warning", LogLevel::kWarning},
             {"error", LogLevel::kError}},
            "least level of lines to log: debug, info, warning or error");
}

void AddUpdateFlags(CLI::App& app, OptimizerOptions& options) {
  AddChoice(app, "update", options.rule,
            {{"sgd", UpdateRule::kSgd}, {"adam", UpdateRule::kAdam}},
            "the optimizer's rule: sgd (with momentum) or adam");
  AddFlag(app, "learning-rate", options.learning_rate, "step size");
  AddFlag(app, "momentum", options.momentum, "of sgd, in [0, 1)");
  AddFlag(app, "weight-decay", options.weight_decay,
          "added to the gradient, times the parameter");
  AddFlag(app, "beta1", options.beta1, "of adam: decay of the first moment");
  AddFlag(app, "beta2", options.beta2, "of adam: decay of the second moment");
  AddFlag(app, "epsilon", options.epsilon, "of adam: added to the divisor");
}

void AddPlanFlags(CLI::App& app, PlanRules& rules, bool knows_times) {
  AddNamedChoice(
      app, "scheme", {"auto", "server", "factor", "ring"}, rules.scheme_name(),
      [&rules](const std::string& name) {
        const auto scheme = ParseScheme(name);
        rules.forced = scheme.ok() ? std::optional(*scheme) : std::nullopt;
      },
      "how layers travel: auto (the cheapest each), or server, factor or ring "
      "for all that can");
  std::map<std::string, CostKind> costs = {{"bytes", CostKind::kBytes}};
  std::string what = "what auto minimises: bytes (Poseidon's rule)";
  if (knows_times) {
    costs["time"] = CostKind::kTime;
    what +=
        ", or time: that of an iteration, as links and layers are measured "
        "or said to be";
  }
  AddChoice(app, "cost", rules.cost, costs, what);
  AddNamedChoice(
      app, "wire", {"auto", "fp32", "bf16", "fp16"}, rules.wire_name(),
      [&rules](const std::string& name) {
        const auto wire = ParseWireType(name);
        rules.choose_wire = !wire.ok();
        rules.wire = wire.value_or(WireType::kFloat32);
      },
      "how gradients and parameters travel: fp32, bf16, fp16, or auto: bf16 "
      "for layers where that makes an iteration shorter (--cost=time); they "
      "are added up and updated as fp32 in any case");
}

void AddOverlapFlag(CLI::App& app, Overlap& overlap) {
  AddChoice(app, "overlap", overlap,
            {{"none", Overlap::kNone},
             {"wfbp", Overlap::kWaitFree},
             {"dear", Overlap::kDecoupled}},
            "what is sent while workers compute: wfbp: a layer, once its "
            "backward is over (wait-free backpropagation), and its outcome at "
            "once; dear: outcomes come in the order of the next forward, while "
            "it is under way; none: nothing before the whole backward is over");
}

void AddQuorumFlags(CLI::App& app, JobOptions& options) {
  AddChoice(app, "quorum", options.quorum,
            {{"all", Quorum::kAll},
             {"majority", Quorum::kMajority},
             {"solo", Quorum::kSolo},
             {"each", Quorum::kEach}},
            "whose gradients close a round: all; solo: the first one's, and "
            "majority: those of a worker drawn for each round, where late ones "
            "count in a later round (eager-SGD); each: every gradient is an "
            "update by itself (SSP)");
  AddFlag(app, "staleness", options.staleness,
          "with any quorum but all: how many steps a worker may be ahead of "
          "the slowest one")
      ->check(CLI::Range(int64_t{0}, kStalenessMax));
  AddFlag(app, "resync", options.resync_every,
          "with quorum majority or solo: every so many rounds, one waits for "
          "all; 0: never")
      ->check(CLI::Range(int64_t{0}, kStepMax));
}

void AddSparsityFlags(CLI::App& app, JobOptions& options) {
  AddFlag(app, "sparsity", options.sparsity,
          "how much of the gradients is held back in each round, from 0 to "
          "below 1: of blocks of them, the same on all workers, the largest "
          "travel, with what was held back of them before (GradientFlow's "
          "coarse-grained sparse communication)")
      ->check(CLI::Range(0.0, 1.0));
  AddFlag(app, "block", options.block_elements,
          "with --sparsity: how many values a block has; 0: a thousandth of "
          "the model, but at most 32768")
      ->check(CLI::Range(kBlockElementsMin, kFrameElementsMax) |
              CLI::IsMember({kBlockAuto}));
  AddFlag(app, "dense-steps", options.dense_steps,
          "with --sparsity: in so many first steps all blocks travel")
      ->check(CLI::Range(int64_t{0}, kStepMax));
}

void AddSharedMemoryFlag(CLI::App& app, bool& shared_memory) {
  AddChoice(app, "shared-memory", shared_memory,
            {{"auto", true}, {"off", false}},
            "auto: processes on one host exchange gradients through memory "
            "that both have, where both are willing and able; off: this "
            "process is not");
}

void AddFusionFlag(CLI::App& app, int64_t& bytes, bool& tune) {
  app.add_option_function<std::string>(
         "--fusion",
         [&bytes, &tune](const std::string& text) {
           tune = text == "auto";
           if (tune) {
             bytes = FusionTuner::kBytesFirst;
           } else if (text == "off") {
             bytes = kNoFusion;
           } else if (!absl::SimpleAtoi(text, &bytes) || bytes < 0 ||
                      bytes > kFusionBytesMax) {
             throw CLI::ValidationError(
                 "--fusion",
                 absl::StrCat("\"", text, "\" is neither off, auto nor ",
                              "bytes from 0 to ", kFusionBytesMax));
           }
         },
         "a number of bytes: small layers share messages, and wait for each "
         "other until so many bytes of them can go; auto: the number is tuned "
         "while training; off: each goes by itself")
      ->envname(FlagVariable("fusion"))
      ->type_name("BYTES")
      ->default_str(bytes == kNoFusion ? "off" : std::to_string(bytes));
}

void AddJobFlags(CLI::App& app, JobFlags& flags) {
  flags.rules.cost = CostKind::kTime;
  AddPlanFlags(app, flags.rules, /*knows_times=*/true);
  AddOverlapFlag(app, flags.options.overlap);
  AddFusionFlag(app, flags.options.fusion_bytes, flags.options.tune_fusion);
  AddQuorumFlags(app, flags.options);
  AddSparsityFlags(app, flags.options);
  AddChoice(app, "optimizer", flags.options.optimizer_place,
            {{"server", OptimizerPlace::kServer},
             {"worker", OptimizerPlace::kWorker}},
            "where the optimizer runs: server, or worker (servers only "
            "average)");
  AddUpdateFlags(app, flags.options.optimizer);
  AddSwitch(app, "deterministic", flags.options.deterministic,
            "sum gradients in the order of ranks: the same bits every run");
  AddChoice(app, "backup", flags.options.backup, {{"0", false}, {"1", true}},
            "copies of each shard on other servers: with 1, a server that is "
            "lost costs no step");
  AddChoice(app, "nan", flags.options.nan,
            {{"fail", NanPolicy::kFail},
             {"skip", NanPolicy::kSkip},
             {"ignore", NanPolicy::kIgnore}},
            "a gradient with a NaN or an infinity: fail ends the job and says "
            "whose it is, skip drops the step on all workers, ignore does not "
            "look");
  AddChoice(app, "loss-scale", flags.options.scale_loss,
            {{"off", false}, {"dynamic", true}},
            "dynamic: workers scale their losses by as much as does not "
            "overflow, for gradients that are computed in fp16; needs "
            "--nan=skip");
}

absl::Status RefuseIdleJobFlags(const CLI::App& app, int argc, char** argv,
                                const JobOptions& options) {
  const auto refuse = [&](const std::vector<std::string>& flags,
                          const std::string& why) {
    return RefuseFlags(app, argc, argv, flags, why);
  };
  absl::Status status;
  if (options.optimizer.rule == UpdateRule::kSgd) {
    status.Update(
        refuse({"--beta1", "--beta2", "--epsilon"}, "with --update=sgd"));
  } else {
    status.Update(refuse({"--momentum"}, "with --update=adam"));
  }
  if (options.quorum == Quorum::kAll) {
    status.Update(refuse({"--staleness", "--resync"}, "with --quorum=all"));
  }
  if (options.sparsity == 0) {
    status.Update(refuse({"--block", "--dense-steps"}, "without --sparsity"));
  }
  return status;
}

}  // namespace nereus
