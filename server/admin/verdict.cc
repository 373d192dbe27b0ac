#include "server/admin/verdict.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/plan/planner.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

// A part of an iteration that is worth a word.
constexpr double kShareMin = 0.05;

absl::StatusOr<double> PredictIteration(const WhatIf& what_if) {
  NEREUS_ASSIGN_OR_RETURN(PlanOptions options, PlanOptionsOf(what_if));
  NEREUS_ASSIGN_OR_RETURN(const Plan plan, MakePlan(what_if.layers, options));
  options.rules.cost = CostKind::kTime;
  return PlanCost(what_if.layers, options, plan.routes);
}

struct Change {
  std::string flag;
  std::function<void(WhatIf&)> make;
};

std::vector<Change> ChangesTo(const WhatIf& what_if) {
  const PlanRules& rules = what_if.plan.rules;
  std::vector<Change> changes;
  if (rules.forced.has_value()) {
    changes.push_back(
        {"--scheme=auto", [](WhatIf& other) { other.plan.rules.forced = {}; }});
  }
  if (rules.cost == CostKind::kBytes) {
    changes.push_back({"--cost=time", [](WhatIf& other) {
                         other.plan.rules.cost = CostKind::kTime;
                       }});
  }
  if (!rules.choose_wire && rules.wire == WireType::kFloat32) {
    changes.push_back({"--wire=bf16", [](WhatIf& other) {
                         other.plan.rules.wire = WireType::kBfloat16;
                       }});
  }
  if (what_if.job.overlap == Overlap::kWaitFree) {
    changes.push_back({"--overlap=dear", [](WhatIf& other) {
                         other.job.overlap = Overlap::kDecoupled;
                       }});
  }
  if (what_if.job.fusion_bytes == kNoFusion) {
    changes.push_back(
        {"--fusion=auto", [](WhatIf& other) { other.job.tune_fusion = true; }});
  }
  if (what_if.plan.cluster.servers < what_if.plan.cluster.workers) {
    changes.push_back({"--servers=colocated", [](WhatIf& other) {
                         other.plan.cluster.servers =
                             other.plan.cluster.workers;
                       }});
  }
  return changes;
}

double NetworkSeconds(const Verdict& verdict) {
  return std::max(0.0, verdict.iteration_seconds - verdict.compute_seconds -
                           verdict.delay_seconds);
}

enum class Limit { kNetwork, kComputing, kLateWorkers };

Limit LimitOf(const Verdict& verdict) {
  const double network = NetworkSeconds(verdict);
  const double worth = kShareMin * verdict.iteration_seconds;
  if (std::max(network, verdict.delay_seconds) <= worth) {
    return Limit::kComputing;
  }
  return network > verdict.delay_seconds ? Limit::kNetwork
                                         : Limit::kLateWorkers;
}

std::string Seconds(double seconds) {
  return absl::StrFormat("%.4f s", seconds);
}

std::string SpeedText(const Verdict& verdict) {
  if (verdict.workers == 1) return "";
  const double speed = static_cast<double>(verdict.workers) *
                       verdict.single_node_seconds / verdict.iteration_seconds;
  if (speed < 0.995) {
    return absl::StrFormat(
        "; %d machines are SLOWER than one, %.2f of its speed", verdict.workers,
        speed);
  }
  return absl::StrFormat("; %d machines are %.2f times as fast as one",
                         verdict.workers, speed);
}

std::string LimitText(const Verdict& verdict) {
  const std::string network = Seconds(NetworkSeconds(verdict));
  const std::string compute = Seconds(verdict.compute_seconds);
  switch (LimitOf(verdict)) {
    case Limit::kNetwork:
      return absl::StrCat("limited by the network, which adds ", network,
                          " to ", compute, " of computing",
                          verdict.delay_seconds > 0
                              ? absl::StrCat("; late workers add ",
                                             Seconds(verdict.delay_seconds))
                              : "");
    case Limit::kLateWorkers:
      return absl::StrCat("limited by late workers, who add ",
                          Seconds(verdict.delay_seconds), " to ", compute,
                          " of computing; the network adds ", network);
    case Limit::kComputing:
      return absl::StrCat("limited by computing, ", compute,
                          "; the network adds ", network);
  }
  return "";
}

}  // namespace

std::vector<Verdict::Advice> FindAdvice(const WhatIf& what_if) {
  const absl::StatusOr<double> as_it_is = PredictIteration(what_if);
  if (!as_it_is.ok()) return {};
  std::vector<Verdict::Advice> advice;
  for (const Change& change : ChangesTo(what_if)) {
    WhatIf other = what_if;
    change.make(other);
    const absl::StatusOr<double> seconds = PredictIteration(other);
    if (!seconds.ok()) continue;  // It does not go with the other flags.
    AddAdvice(change.flag, absl::Seconds(*as_it_is), absl::Seconds(*seconds),
              advice);
  }
  return advice;
}

void AddAdvice(const std::string& flag, absl::Duration without,
               absl::Duration with, std::vector<Verdict::Advice>& advice) {
  const absl::Duration saved = without - with;
  if (saved <= kShareMin * without) return;
  advice.push_back({flag, absl::ToDoubleSeconds(saved)});
  std::stable_sort(advice.begin(), advice.end(),
                   [](const auto& a, const auto& b) {
                     return a.saved_seconds > b.saved_seconds;
                   });
}

std::string FormatVerdict(const Verdict& verdict) {
  if (verdict.iteration_seconds <= 0) return "An iteration takes no time.\n";
  std::string text =
      absl::StrCat("An iteration takes ", Seconds(verdict.iteration_seconds));
  if (verdict.single_node_seconds > 0) {
    absl::StrAppend(&text, SpeedText(verdict), ": ", LimitText(verdict), ".\n");
  } else {
    absl::StrAppend(&text,
                    " for the network alone; with --compute=TIME, of one "
                    "machine's step, it is said what that comes to.\n");
  }
  if (verdict.advice.empty() || LimitOf(verdict) == Limit::kComputing) {
    return text;
  }
  return absl::StrCat(
      text, "Flags that would shorten it, each alone: ",
      absl::StrJoin(verdict.advice, ", ",
                    [](std::string* out, const Verdict::Advice& advice) {
                      absl::StrAppend(out, advice.flag, " by about ",
                                      Seconds(advice.saved_seconds));
                    }),
      ".\n");
}

nlohmann::ordered_json VerdictJson(const Verdict& verdict) {
  const char* limit = "network";
  if (LimitOf(verdict) == Limit::kComputing) limit = "computing";
  if (LimitOf(verdict) == Limit::kLateWorkers) limit = "late workers";
  nlohmann::ordered_json advice = nlohmann::ordered_json::array();
  for (const Verdict::Advice& each : verdict.advice) {
    advice.push_back(
        {{"flag", each.flag}, {"saved_seconds", each.saved_seconds}});
  }
  return {{"limited_by", limit}, {"advice", std::move(advice)}};
}

}  // namespace nereus
