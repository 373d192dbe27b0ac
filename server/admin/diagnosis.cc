#include "server/admin/diagnosis.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/planner.h"
#include "nlohmann/json.hpp"
#include "server/admin/quantity.h"

namespace nereus {
namespace {

// Smallest share of an iteration that counts. A diagnosis ignores the network,
// late workers or a flag if they add or save less time than that.
constexpr double kShareMin = 0.05;

// Returns the predicted seconds of an iteration with the plan that MakePlan
// makes.
absl::StatusOr<double> PredictIteration(const WhatIf& what_if) {
  PlanOptions options = NEREUS_TRY(PlanOptionsOf(what_if));
  const Plan plan = NEREUS_TRY(MakePlan(what_if.layers, options));
  options.rules.cost = CostKind::kTime;
  return PlanCost(what_if.layers, options, plan.routes);
}

// A flag that may shorten an iteration.
struct Change {
  const char* flag;
  bool (*is_new)(const WhatIf&);  // True if the flag would change something.
  void (*make)(WhatIf&);
};

constexpr Change kChanges[] = {
    {"--scheme=auto",
     [](const WhatIf& w) { return w.plan.rules.forced.has_value(); },
     [](WhatIf& w) { w.plan.rules.forced.reset(); }},
    {"--cost=time",
     [](const WhatIf& w) { return w.plan.rules.cost == CostKind::kBytes; },
     [](WhatIf& w) { w.plan.rules.cost = CostKind::kTime; }},
    {"--wire=bf16",
     [](const WhatIf& w) {
       const PlanRules& rules = w.plan.rules;
       return !rules.choose_wire && rules.wire == WireType::kFloat32;
     },
     [](WhatIf& w) { w.plan.rules.wire = WireType::kBfloat16; }},
    {"--overlap=wfbp",
     [](const WhatIf& w) { return w.job.overlap == Overlap::kNone; },
     [](WhatIf& w) { w.job.overlap = Overlap::kWaitFree; }},
    {"waiting for each layer in the next forward",
     [](const WhatIf& w) { return !w.waits_in_forward; },
     [](WhatIf& w) { w.waits_in_forward = true; }},
    {"--fusion=auto",
     [](const WhatIf& w) { return w.job.fusion_bytes == kNoFusion; },
     [](WhatIf& w) { w.job.tune_fusion = true; }},
    {"--servers=colocated",
     [](const WhatIf& w) {
       return w.plan.cluster.servers < w.plan.cluster.worker_hosts();
     },
     [](WhatIf& w) { w.plan.cluster.servers = w.plan.cluster.worker_hosts(); }},
};

// Returns the seconds of an iteration that neither computing nor late workers
// explain: the network, and copies that nothing hides.
double NetworkSeconds(const Diagnosis& diagnosis) {
  return std::max(0.0, diagnosis.iteration_seconds - diagnosis.compute_seconds -
                           diagnosis.delay_seconds);
}

// Part of an iteration that is worth shortening first.
enum class Limit { kNetwork, kComputing, kLateWorkers };

Limit LimitOf(const Diagnosis& diagnosis) {
  const double network = NetworkSeconds(diagnosis);
  const double worth = kShareMin * diagnosis.iteration_seconds;
  if (std::max(network, diagnosis.delay_seconds) <= worth) {
    return Limit::kComputing;
  }
  return network > diagnosis.delay_seconds ? Limit::kNetwork
                                           : Limit::kLateWorkers;
}

// Returns "8 machines are %s one", or "8 workers on 2 machines are %s one
// worker", with `than` in the place of %s.
std::string CompareText(const Diagnosis& diagnosis, absl::string_view than) {
  if (diagnosis.hosts == 0 || diagnosis.hosts == diagnosis.workers) {
    return absl::StrCat(diagnosis.workers, " machines are ", than, " one");
  }
  return absl::StrCat(diagnosis.workers, " workers on ", diagnosis.hosts,
                      diagnosis.hosts == 1 ? " machine" : " machines", " are ",
                      than, " one worker");
}

// Returns a text that compares the throughput of all workers with that of one
// worker. "" if there is only one worker.
std::string SpeedText(const Diagnosis& diagnosis) {
  if (diagnosis.workers == 1) return "";
  const double speed = static_cast<double>(diagnosis.workers) *
                       diagnosis.single_node_seconds /
                       diagnosis.iteration_seconds;
  // A speed above 0.995 is shown as 1.00 or more, which is not slower.
  if (speed >= 0.995) {
    return absl::StrCat(
        "; ", CompareText(diagnosis,
                          absl::StrFormat("%.2f times as fast as", speed)));
  }
  return absl::StrCat("; ", CompareText(diagnosis, "SLOWER than"),
                      absl::StrFormat(", %.2f of its speed", speed));
}

// Returns the name of the limit, and the time that each part adds.
std::string LimitText(const Diagnosis& diagnosis) {
  const std::string network = Seconds(NetworkSeconds(diagnosis));
  const std::string compute = Seconds(diagnosis.compute_seconds);
  const std::string late = Seconds(diagnosis.delay_seconds);
  switch (LimitOf(diagnosis)) {
    case Limit::kNetwork:
      return absl::StrCat(
          "limited by the network, which adds ", network, " to ", compute,
          " of computing",
          diagnosis.delay_seconds > 0 ? "; late workers add " + late : "");
    case Limit::kLateWorkers:
      return absl::StrCat("limited by late workers, which add ", late, " to ",
                          compute, " of computing; the network adds ", network);
    case Limit::kComputing:
      return absl::StrCat("limited by computing, ", compute,
                          "; the network adds ", network);
  }
  return "";
}

}  // namespace

std::vector<Diagnosis::Advice> FindAdvice(const WhatIf& what_if) {
  const absl::StatusOr<double> as_it_is = PredictIteration(what_if);
  if (!as_it_is.ok()) return {};
  std::vector<Diagnosis::Advice> advice;
  for (const Change& change : kChanges) {
    if (!change.is_new(what_if)) continue;
    WhatIf other = what_if;
    change.make(other);
    // Skips a flag that the other flags exclude.
    const absl::StatusOr<double> seconds = PredictIteration(other);
    if (!seconds.ok()) continue;
    AddAdvice(change.flag, absl::Seconds(*as_it_is), absl::Seconds(*seconds),
              advice);
  }
  return advice;
}

// Leaves out small savings, because the prediction is not that exact.
void AddAdvice(const std::string& flag, absl::Duration without,
               absl::Duration with, std::vector<Diagnosis::Advice>& advice) {
  const absl::Duration saved = without - with;
  if (saved <= kShareMin * without) return;
  advice.push_back({flag, absl::ToDoubleSeconds(saved)});
  absl::c_stable_sort(advice, [](const auto& a, const auto& b) {
    return a.saved_seconds > b.saved_seconds;
  });
}

std::string FormatDiagnosis(const Diagnosis& diagnosis) {
  if (diagnosis.iteration_seconds <= 0) return "An iteration takes no time.\n";
  std::string text =
      absl::StrCat("An iteration takes ", Seconds(diagnosis.iteration_seconds));
  if (diagnosis.single_node_seconds > 0) {
    absl::StrAppend(&text, SpeedText(diagnosis), ": ", LimitText(diagnosis),
                    ".\n");
  } else {
    absl::StrAppend(
        &text,
        " for the network alone; with --compute=TIME (the time of a "
        "step on one machine) this text includes computing.\n");
  }
  if (diagnosis.advice.empty() || LimitOf(diagnosis) == Limit::kComputing) {
    return text;
  }
  return absl::StrCat(
      text, "Flags that would shorten it, each alone: ",
      absl::StrJoin(diagnosis.advice, ", ",
                    [](std::string* out, const Diagnosis::Advice& advice) {
                      absl::StrAppend(out, advice.flag, " by about ",
                                      Seconds(advice.saved_seconds));
                    }),
      ".\n");
}

nlohmann::ordered_json DiagnosisJson(const Diagnosis& diagnosis) {
  const char* limit = "network";
  if (LimitOf(diagnosis) == Limit::kComputing) limit = "computing";
  if (LimitOf(diagnosis) == Limit::kLateWorkers) limit = "late workers";
  nlohmann::ordered_json advice = nlohmann::ordered_json::array();
  for (const Diagnosis::Advice& each : diagnosis.advice) {
    advice.push_back(
        {{"flag", each.flag}, {"saved_seconds", each.saved_seconds}});
  }
  return {{"limited_by", limit}, {"advice", std::move(advice)}};
}

}  // namespace nereus
