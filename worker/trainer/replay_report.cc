#include "worker/trainer/replay_report.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "worker/measure/copy_times.h"
#include "worker/public/client.h"
#include "worker/public/client_report.h"
#include "worker/trainer/report.h"

// Read ReplayJson and ReplayText first, which print the
// figures of CopyCostOf and TrafficOf.

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// Quantiles of the step times that are reported beside the median.
constexpr double kLow = 0.05;
constexpr double kHigh = 0.95;

// Returns the mean time from push to done of the layer's rounds; 0 if there are
// none.
double MeanLatencySeconds(const LayerReport& layer) {
  const auto rounds = static_cast<double>(std::max<int64_t>(layer.rounds, 1));
  return absl::ToDoubleSeconds(layer.latency_total) / rounds;
}

Json LayerJson(const LayerReport& layer) {
  return {
      {"name", layer.name},
      {"scheme", layer.scheme},
      {"wire", layer.wire},
      {"rounds", layer.rounds},
      {"bytes_sent", layer.bytes_sent},
      {"bytes_received", layer.bytes_received},
      {"latency_seconds_mean", MeanLatencySeconds(layer)},
  };
}

Json NumberOrNull(const std::optional<double>& number) {
  return number.has_value() ? Json(*number) : Json();
}

// Cost of the copies between a GPU and the host.
struct CopyCost {
  // Bytes per step to the host (out) and to the GPU (in).
  double bytes_out_per_step = 0.0;
  double bytes_in_per_step = 0.0;
  // Shares of the copies' time in which the GPU also computed: for all copies,
  // for copies to the host and for copies to the GPU. Absent: there are no such
  // copies after the worker's first step, which does not count.
  std::optional<double> hidden;
  std::optional<double> hidden_out;
  std::optional<double> hidden_in;
};

Json CopiesJson(const CopyCost& copies) {
  return {
      {"bytes_out_per_step", copies.bytes_out_per_step},
      {"bytes_in_per_step", copies.bytes_in_per_step},
      {"hidden_share", NumberOrNull(copies.hidden)},
      {"hidden_share_out", NumberOrNull(copies.hidden_out)},
      {"hidden_share_in", NumberOrNull(copies.hidden_in)},
  };
}

// Returns the share of `times` that is hidden; nothing if there are no copies.
std::optional<double> HiddenShareOf(const CopyTimes& times) {
  const bool has_copies = times.hidden + times.exposed > absl::ZeroDuration();
  if (!has_copies) return std::nullopt;
  return times.hidden_share();
}

// Returns the cost of a GPU's copies. The shares leave out the first step,
// because its copies wait until memory is pinned.
CopyCost CopyCostOf(const ReplayReport& report) {
  CopyCost cost;
  const auto steps =
      static_cast<double>(std::max<int64_t>(report.result.steps_begun, 1));
  cost.bytes_out_per_step =
      static_cast<double>(report.bytes_copied_out) / steps;
  cost.bytes_in_per_step = static_cast<double>(report.bytes_copied_in) / steps;
  const std::vector<GpuSpan>& timeline = *report.timeline;
  if (timeline.empty()) return cost;
  // The first step of a worker that joined a running job is not step 0.
  int64_t first = timeline.front().step;
  for (const GpuSpan& span : timeline) first = std::min(first, span.step);
  std::vector<GpuSpan> spans;
  absl::c_copy_if(
      timeline, std::back_inserter(spans), [&](const GpuSpan& span) {
        return span.kind == GpuSpan::Kind::kCompute || span.step > first;
      });
  const CopyTimes out = CopyTimesOf(spans, GpuSpan::Kind::kCopyOut);
  const CopyTimes in = CopyTimesOf(spans, GpuSpan::Kind::kCopyIn);
  cost.hidden = HiddenShareOf(CopyTimes(out) += in);
  cost.hidden_out = HiddenShareOf(out);
  cost.hidden_in = HiddenShareOf(in);
  return cost;
}

std::string Percent(const std::optional<double>& share) {
  if (!share.has_value()) return "not known";
  return absl::StrFormat("%.3g %%", 100.0 * *share);
}

std::string CopiesText(const CopyCost& copies) {
  return absl::StrFormat(
      "copies per step: %.0f bytes to the host, %.0f to the GPU; beside "
      "computing: %s of their time (to the host %s, to the GPU %s)",
      copies.bytes_out_per_step, copies.bytes_in_per_step,
      Percent(copies.hidden), Percent(copies.hidden_out),
      Percent(copies.hidden_in));
}

// Bytes sent to and received from all peers.
struct Traffic {
  int64_t sent = 0;
  int64_t received = 0;
};
Traffic TrafficOf(const std::vector<PeerTraffic>& peers) {
  Traffic traffic;
  for (const PeerTraffic& peer : peers) {
    traffic.sent += peer.bytes_sent;
    traffic.received += peer.bytes_received;
  }
  return traffic;
}

}  // namespace

absl::Duration Quantile(std::vector<absl::Duration> times, double share) {
  if (times.empty()) return absl::ZeroDuration();
  const auto position =
      static_cast<size_t>(share * static_cast<double>(times.size()));
  const auto at = times.begin() + std::min(position, times.size() - 1);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

std::string ReplayJson(const ReplayReport& report) {
  const std::vector<absl::Duration>& steps = report.result.steps;
  const auto quantile = [&](double share) -> Json {
    if (steps.empty()) return nullptr;
    return absl::ToDoubleSeconds(Quantile(steps, share));
  };
  const Traffic traffic = TrafficOf(report.costs.peers);
  Json json = {
      {"event", "replayed"},
      {"rank", report.rank},
      {"device", report.device},
      {"compute_seconds", absl::ToDoubleSeconds(report.computing)},
      {"steps", report.result.steps_begun},
      {"step_seconds_median", quantile(0.5)},
      {"step_seconds_p05", quantile(kLow)},
      {"step_seconds_p95", quantile(kHigh)},
      {"step_seconds", Json::array()},
      {"layers", Json::array()},
      {"bytes_sent", traffic.sent},
      {"bytes_received", traffic.received},
      {"copies", nullptr},
  };
  if (report.timeline.has_value()) {
    json["copies"] = CopiesJson(CopyCostOf(report));
  }
  for (const absl::Duration time : steps) {
    json["step_seconds"].push_back(absl::ToDoubleSeconds(time));
  }
  for (const LayerReport& layer : report.costs.layers) {
    json["layers"].push_back(LayerJson(layer));
  }
  // Names come from other processes: without `replace`, a byte that is not
  // UTF-8 would throw.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> ReplayText(const ReplayReport& report) {
  const std::vector<absl::Duration>& steps = report.result.steps;
  const auto milliseconds = [&](double share) {
    return absl::ToDoubleMilliseconds(Quantile(steps, share));
  };
  std::vector<std::string> lines;
  if (steps.empty()) {
    lines.push_back(absl::StrFormat(
        "replayed %d steps on %s: no step has a time, since the first steps do "
        "not count",
        report.result.steps_begun, report.device));
  } else {
    lines.push_back(absl::StrFormat(
        "replayed %d steps on %s: median %.3f ms (5 %% to 95 %%: %.3f to %.3f "
        "ms), of which %.3f ms computing",
        report.result.steps_begun, report.device, milliseconds(0.5),
        milliseconds(kLow), milliseconds(kHigh),
        absl::ToDoubleMilliseconds(report.computing)));
  }
  if (report.timeline.has_value()) {
    lines.push_back(CopiesText(CopyCostOf(report)));
  }
  const Traffic traffic = TrafficOf(report.costs.peers);
  lines.push_back(absl::StrFormat("network: %d bytes sent, %d received",
                                  traffic.sent, traffic.received));
  for (const LayerReport& layer : report.costs.layers) {
    lines.push_back(absl::StrFormat(
        "layer %s: scheme %s, wire %s, %d rounds, sent %d bytes, received %d, "
        "mean latency %.2f ms",
        layer.name, layer.scheme, layer.wire, layer.rounds, layer.bytes_sent,
        layer.bytes_received, 1e3 * MeanLatencySeconds(layer)));
  }
  return lines;
}

}  // namespace nereus
