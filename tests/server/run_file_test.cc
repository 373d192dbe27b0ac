#include "server/admin/run_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/random.h"
#include "common/messages/worker_event.h"
#include "common/protocol/job_spec.h"
#include "server/admin/local_report.h"
#include "tests/testing/fuzz_budget.h"
#include "tests/testing/machine_harness.h"
#include "tests/testing/mutation.h"

namespace nereus {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Returns the fields of a report of `nereusctl local --json` that ExplainRun
// reads, with two workers.
Json SomeRun() {
  Json workers = Json::array();
  for (const int rank : {0, 1}) {
    WorkerResult result;
    result.rank = rank;
    result.workers = 2;
    result.measured = {absl::Milliseconds(10 + 2 * rank),
                       LinkSpeed{1e6 * (2 - rank), absl::Microseconds(50),
                                 absl::Microseconds(5)},
                       std::nullopt};
    for (const LayerSpec& spec :
         {VectorLayer("scale", 1000), FactorLayer("fc", 64, 32, true, 4)}) {
      LayerResult layer;
      layer.spec = spec;
      layer.scheme = spec.name == "fc" ? "ring" : "server";
      layer.reason = "it is short";
      layer.rounds = 10;
      layer.latency_seconds_mean = rank == 0 ? 0.004 : 0.006;
      layer.time = {absl::Milliseconds(1 + rank), absl::Milliseconds(2)};
      result.layers.push_back(layer);
    }
    workers.push_back(Json::parse(FormatWorkerEvent(result)));
  }
  Json settings;
  for (const JobOption& option : JobOptionTable()) {
    settings[JsonName(option.name)] = option.get(JobSpec());
  }
  return {{"plan",
           {{"model", "some"},
            {"batch", 4},
            {"workers", 2},
            {"servers", 1},
            {"cost", "time"},
            {"wire", "fp32"}}},
          {"settings", std::move(settings)},
          {"workers", std::move(workers)}};
}

TEST(RunFileTest, ShowsPredictedAndMeasuredTimes) {
  const auto run = ExplainRun(SomeRun().dump());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->report.plan.routes[0].scheme, Scheme::kServer);
  EXPECT_EQ(run->report.plan.routes[1].scheme, Scheme::kRing);
  const PlanForecast& forecast = run->forecast;
  // Slowest figures of the two workers.
  EXPECT_EQ(forecast.model.link.rate, 1e6);
  EXPECT_EQ(forecast.model.times[0].forward, absl::Milliseconds(2));
  EXPECT_EQ(forecast.iteration_seconds_measured, 0.011);
  EXPECT_EQ(forecast.layers[1].sync_seconds_measured, 0.005);
  EXPECT_GT(forecast.layers[1].sync_seconds, 0);
  EXPECT_FALSE(forecast.layers[0].by_factor.has_value());
  // The planned scheme of a layer gives the predicted iteration.
  EXPECT_EQ(forecast.layers[1].by_ring, forecast.iteration_seconds);
  EXPECT_THAT(FormatForecastText(run->report, forecast),
              HasSubstr("11.000 ms measured"));
  const Json json = Json::parse(FormatExplainedJson(*run, Diagnosis()));
  EXPECT_EQ(json["time"]["layers"][1]["iteration_seconds"]["ring"],
            forecast.iteration_seconds);
  EXPECT_TRUE(
      json["time"]["layers"][0]["iteration_seconds"]["factor"].is_null());
}

// In the report of nereusctl simulate, compute_seconds has the same meaning.
TEST(RunFileTest, ComputingTimeIncludesTheProductsOfFactors) {
  Json run = SomeRun();
  for (Json& worker : run["workers"]) worker["layers"][1]["scheme"] = "factor";
  const auto explained = ExplainRun(run.dump());
  ASSERT_TRUE(explained.ok()) << explained.status();
  const PlanForecast& forecast = explained->forecast;
  const Json json = Json::parse(FormatExplainedJson(*explained, Diagnosis()));
  EXPECT_EQ(json["time"]["compute_seconds"], forecast.compute_seconds);
  EXPECT_GT(forecast.compute_seconds,
            absl::ToDoubleSeconds(TotalTime(forecast.model.times)));
}

// The report does not have the threshold that the job tuned.
TEST(RunFileTest, JobThatTunedFusionIsPredictedWithTheBestThreshold) {
  Json run = SomeRun();
  run["settings"]["fusion"] = "auto";
  const auto explained = ExplainRun(run.dump());
  ASSERT_TRUE(explained.ok()) << explained.status();
  const PlanForecast& forecast = explained->forecast;
  EXPECT_EQ(explained->report.plan.fusion_bytes, forecast.fusion.best_bytes);
  EXPECT_EQ(forecast.iteration_seconds, forecast.fusion.best_seconds);
  const Json json = Json::parse(FormatExplainedJson(*explained, Diagnosis()));
  EXPECT_EQ(json["time"]["fusion"]["bytes"], forecast.fusion.best_bytes);
}

TEST(RunFileTest, HostsAreThoseOfTheRun) {
  Json run = SomeRun();
  EXPECT_EQ(ExplainRun(run.dump())->report.options.cluster.hosts, 0);
  run["plan"]["hosts"] = 1;
  const auto explained = ExplainRun(run.dump());
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->report.options.cluster.hosts, 1);
  run["plan"]["hosts"] = 3;
  const absl::Status refused = ExplainRun(run.dump()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("hosts is 3, of 2 workers"));
}

TEST(RunFileTest, WireTypesAreThoseOfTheRun) {
  Json run = SomeRun();
  run["plan"]["wire"] = "auto";
  run["settings"]["wire"] = "auto";
  for (Json& worker : run["workers"]) worker["layers"][1]["wire"] = "bf16";
  const auto explained = ExplainRun(run.dump());
  ASSERT_TRUE(explained.ok()) << explained.status();
  const Json json = Json::parse(FormatExplainedJson(*explained, Diagnosis()));
  EXPECT_EQ(json["wire"], "auto");
  EXPECT_EQ(json["time"]["layers"][0]["wire"], "fp32");
  EXPECT_EQ(json["time"]["layers"][1]["wire"], "bf16");
}

TEST(RunFileTest, MissingOrBadFieldIsNamed) {
  const auto refusal = [](const std::function<void(Json&)>& edit) {
    Json run = SomeRun();
    edit(run);
    const auto explained = ExplainRun(run.dump());
    EXPECT_EQ(explained.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(explained.status().message());
  };
  EXPECT_THAT(refusal([](Json& run) { run.erase("plan"); }),
              HasSubstr("run: plan is missing"));
  EXPECT_THAT(refusal([](Json& run) { run["plan"]["workers"] = "2"; }),
              HasSubstr("plan: workers is string, not an integer"));
  EXPECT_THAT(refusal([](Json& run) { run["plan"]["workers"] = 0; }),
              HasSubstr("plan: workers is 0, not from 1 to 65536"));
  EXPECT_THAT(refusal([](Json& run) { run["settings"]["fusion"] = -2; }),
              HasSubstr("settings: fusion: \"-2\" is not off, auto or"));
  EXPECT_THAT(refusal([](Json& run) { run["workers"].clear(); }),
              HasSubstr("no worker has reported its end"));
  EXPECT_THAT(
      refusal([](Json& run) { run["workers"][1]["measured"] = nullptr; }),
      HasSubstr("worker 1 has measured nothing"));
  EXPECT_THAT(refusal([](Json& run) {
                run["workers"][0]["measured"]["link"]["bytes_per_second"] = -1;
              }),
              HasSubstr("rate is -1"));
  EXPECT_THAT(refusal([](Json& run) {
                run["workers"][0]["measured"]["memory_bytes_per_second"] = 0;
              }),
              HasSubstr("memory_rate is 0"));
  EXPECT_THAT(refusal([](Json& run) {
                for (Json& worker : run["workers"]) {
                  worker["measured"]["link"] = nullptr;
                }
              }),
              HasSubstr("no worker has measured the link of its host"));
  EXPECT_THAT(refusal([](Json& run) { run["workers"][1]["layers"].erase(1); }),
              HasSubstr("different models"));
  EXPECT_FALSE(ExplainRun("[]").ok());
  EXPECT_FALSE(ExplainRun("").ok());
}

TEST(RunFileTest, MutatedTextIsReadOrRefused) {
  const std::string run = SomeRun().dump();
  int read = 0;
  FuzzBudget budget;
  while (budget.Next()) {
    SCOPED_TRACE(ReplayHint(budget.seed()));
    Random random(budget.seed());
    std::string text = run;
    Mutate(random, text);
    const auto explained = ExplainRun(text);
    read += explained.ok();
    if (!explained.ok()) continue;
    const PlanForecast& forecast = explained->forecast;
    ASSERT_EQ(forecast.layers.size(), explained->report.layers.size());
    ASSERT_GE(forecast.iteration_seconds, 0);
  }
  EXPECT_TRUE(read > 0 || budget.runs() == 1);
}

}  // namespace
}  // namespace nereus
