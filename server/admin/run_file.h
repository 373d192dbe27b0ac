#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/plan/plan_forecast.h"
#include "common/plan/plan_report.h"
#include "server/admin/diagnosis.h"

namespace nereus {

// A plan with a prediction of its times.
struct ExplainedPlan {
  PlanReport report;
  PlanForecast forecast;
};

// Returns the last plan of a job, with the times that its workers measured.
// Each figure of a layer's computing and of the links is the slowest of all
// workers. Times of iterations and rounds are means over the workers. `json` is
// meant to be a report of `nereusctl local --json`, but may be any text.
//
// Errors: kInvalidArgument, with the field that is missing or wrong, or because
// the workers measured nothing (--cost=time measures).
absl::StatusOr<ExplainedPlan> ExplainRun(absl::string_view json);

// Returns the JSON of FormatPlanJson, with "time" (ForecastJson) and "verdict"
// (DiagnosisJson).
std::string FormatExplainedJson(const ExplainedPlan& plan,
                                const Diagnosis& diagnosis);

}  // namespace nereus
