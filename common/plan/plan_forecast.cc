#include "common/plan/plan_forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/text_table.h"
#include "common/plan/fusion.h"
#include "common/plan/plan_report.h"
#include "common/plan/scheme.h"
#include "common/plan/time_cost.h"
#include "common/plan/wire_type.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

// Returns a time for the table; "-" if there is none.
std::string Milliseconds(const std::optional<double>& seconds) {
  return seconds.has_value() ? absl::StrFormat("%.3f", *seconds * 1e3) : "-";
}

// Returns the value for JSON; null if there is none.
nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::ordered_json(*value)
                           : nlohmann::ordered_json();
}

// Returns the lines above the table: speed of links, predicted and measured
// time of an iteration, effect of fusion.
std::string FormatSummary(const PlanReport& report,
                          const PlanForecast& forecast) {
  const LinkSpeed& link = forecast.model.link;
  const double memory_rate = forecast.model.memory_rate;
  std::string text = absl::StrFormat(
      "By time: links of %.4g bytes/s, %s a frame and %s more for each in a "
      "row;\n%s%s computing a step.\nAn iteration: %s ms predicted",
      link.rate, absl::FormatDuration(link.latency),
      absl::FormatDuration(link.message_time),
      std::isinf(memory_rate)
          ? ""
          : absl::StrFormat("memory of %.4g bytes/s; ", memory_rate),
      absl::FormatDuration(TotalTime(forecast.model.times)),
      Milliseconds(forecast.iteration_seconds));
  if (forecast.iteration_seconds_measured.has_value()) {
    absl::StrAppend(&text, ", ",
                    Milliseconds(forecast.iteration_seconds_measured),
                    " ms measured");
  }
  const PlanForecast::Fusion& fusion = forecast.fusion;
  const int64_t fusion_bytes = report.plan.fusion_bytes;
  absl::StrAppend(
      &text, ".\nFusion: ",
      fusion_bytes == kNoFusion ? "off" : absl::StrCat(fusion_bytes, " bytes"),
      ". Without fusion an iteration takes ",
      Milliseconds(fusion.without_seconds), " ms; ");
  if (fusion.best_seconds < fusion.without_seconds) {
    absl::StrAppend(&text, "with ", fusion.best_bytes, " bytes, the best, ",
                    Milliseconds(fusion.best_seconds), " ms");
  } else {
    absl::StrAppend(&text, "no threshold shortens it");
  }
  return text;
}

}  // namespace

// Plays one timeline for each layer and scheme, and some for fusion.
PlanForecast MakeForecast(const PlanReport& report, const TimeModel& model) {
  const Timeline timeline(report.layers, report.placement,
                          report.options.cluster, model);
  const std::vector<Route>& routes = report.plan.routes;
  const int64_t fusion_bytes = report.plan.fusion_bytes;
  const Timeline::Played played = timeline.PlayLayers(routes, fusion_bytes);
  PlanForecast forecast;
  forecast.model = model;
  forecast.iteration_seconds = played.seconds;
  forecast.compute_seconds = played.compute_seconds;
  const int64_t best = BestFusion(timeline, routes);
  forecast.fusion = {timeline.Play(routes, kNoFusion), best,
                     timeline.Play(routes, best)};
  for (size_t i = 0; i < routes.size(); ++i) {
    // Changes the route of this layer only, so the difference to the planned
    // time is the effect of this change.
    const auto with = [&](Scheme scheme) -> std::optional<double> {
      if (!SupportsScheme(report.layers[i], scheme)) return std::nullopt;
      std::vector<Route> other = routes;
      other[i].scheme = scheme;
      return timeline.Play(other, fusion_bytes);
    };
    forecast.layers.push_back({with(Scheme::kServer), with(Scheme::kFactor),
                               with(Scheme::kRing), with(Scheme::kDirect),
                               played.sync_seconds[i], std::nullopt});
  }
  return forecast;
}

std::string FormatForecastText(const PlanReport& report,
                               const PlanForecast& forecast, bool all_layers) {
  const std::vector<LayerGroup> groups =
      GroupLayers(report.layers, report.plan.routes, all_layers);
  std::string text = FormatSummary(report, forecast);
  absl::StrAppend(
      &text,
      ".\nBy servers, factors, ring, directly: milliseconds of an "
      "iteration if this layer\nalone went that way. Sync: from its gradient "
      "to the outcome, predicted and measured.");
  if (groups.size() < forecast.layers.size()) {
    absl::StrAppend(&text,
                    " Of layers like\neach other, the one with the "
                    "longest sync is shown.");
  }
  absl::StrAppend(&text, "\n\n");
  TextTable table("lllrrrrrr");
  table.Row("layer", "scheme", "wire", "by servers", "by factors", "by ring",
            "directly", "sync", "measured");
  for (const LayerGroup& group : groups) {
    // Shows the layer with the longest synchronisation, because it delays a
    // step most.
    const size_t i = *absl::c_max_element(group.layers, [&](size_t a,
                                                            size_t b) {
      return forecast.layers[a].sync_seconds < forecast.layers[b].sync_seconds;
    });
    const PlanForecast::Layer& layer = forecast.layers[i];
    table.Row(group.name, SchemeName(report.plan.routes[i].scheme),
              WireTypeName(report.plan.routes[i].wire),
              Milliseconds(layer.by_server), Milliseconds(layer.by_factor),
              Milliseconds(layer.by_ring), Milliseconds(layer.by_direct),
              Milliseconds(layer.sync_seconds),
              Milliseconds(layer.sync_seconds_measured));
  }
  return text + table.Text();
}

nlohmann::ordered_json ForecastJson(const PlanReport& report,
                                    const PlanForecast& forecast) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t i = 0; i < forecast.layers.size(); ++i) {
    const PlanForecast::Layer& layer = forecast.layers[i];
    const LayerTime& time = forecast.model.times[i];
    layers.push_back({
        {"name", report.layers[i].name},
        {"scheme", std::string(SchemeName(report.plan.routes[i].scheme))},
        {"wire", std::string(WireTypeName(report.plan.routes[i].wire))},
        {"forward_seconds", absl::ToDoubleSeconds(time.forward)},
        {"backward_seconds", absl::ToDoubleSeconds(time.backward)},
        {"iteration_seconds",
         {{"server", OrNull(layer.by_server)},
          {"factor", OrNull(layer.by_factor)},
          {"ring", OrNull(layer.by_ring)},
          {"direct", OrNull(layer.by_direct)}}},
        {"sync_seconds", layer.sync_seconds},
        {"sync_seconds_measured", OrNull(layer.sync_seconds_measured)},
    });
  }
  const LinkSpeed& link = forecast.model.link;
  const int64_t fusion_bytes = report.plan.fusion_bytes;
  return {
      {"link",
       {{"bytes_per_second", link.rate},
        {"latency_seconds", absl::ToDoubleSeconds(link.latency)},
        {"message_seconds", absl::ToDoubleSeconds(link.message_time)}}},
      {"memory_bytes_per_second",
       std::isinf(forecast.model.memory_rate)
           ? nlohmann::ordered_json()
           : nlohmann::ordered_json(forecast.model.memory_rate)},
      {"compute_seconds", forecast.compute_seconds},
      {"iteration_seconds", forecast.iteration_seconds},
      {"iteration_seconds_measured",
       OrNull(forecast.iteration_seconds_measured)},
      {"fusion",
       {{"bytes", fusion_bytes == kNoFusion
                      ? nlohmann::ordered_json()
                      : nlohmann::ordered_json(fusion_bytes)},
        {"without_seconds", forecast.fusion.without_seconds},
        {"best_bytes", forecast.fusion.best_bytes},
        {"best_seconds", forecast.fusion.best_seconds}}},
      {"layers", std::move(layers)},
  };
}

}  // namespace nereus
