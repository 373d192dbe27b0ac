#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "server/admin/verdict.h"
#include "server/admin/worker_event.h"

namespace nereus {

// A plan, and what it should take in time.
struct ExplainedPlan {
  PlanReport report;
  PlanForecast forecast;
};

// The plan with which a run ended, and what its workers measured: of layers and
// links, the slowest worker's figures, of iterations and rounds, means over the
// workers. `json`: what `nereusctl local --json` has written; may be anything.
//
// Errors: kInvalidArgument, naming what is missing or wrong; such as that the
// workers have measured nothing (`--cost=time`).
absl::StatusOr<ExplainedPlan> ExplainRun(absl::string_view json);

// FormatPlanJson's, with "time": ForecastJson's, and "verdict": VerdictJson's.
std::string FormatExplainedJson(const ExplainedPlan& plan,
                                const Verdict& verdict);

}  // namespace nereus
