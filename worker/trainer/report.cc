#include "worker/trainer/report.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/logging.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// Returns the JSON text. Names and reasons come from other processes: without
// `replace`, a byte that is not UTF-8 would throw.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double MeanLatencySeconds(const LayerReport& layer) {
  if (layer.rounds == 0) return 0.0;
  return absl::ToDoubleSeconds(layer.latency_total) /
         static_cast<double>(layer.rounds);
}

Json LayerJson(const LayerSpec& spec, const LayerReport& layer) {
  return {
      {"name", spec.name},
      {"kind", std::string(LayerKindName(spec.kind))},
      {"m", spec.m},
      {"n", spec.n},
      {"parameters", spec.parameters},
      {"rows", spec.rows},
      {"has_factors", spec.has_factors},
      {"scheme", layer.scheme},
      {"wire", layer.wire},
      {"reason", layer.reason},
      {"rounds", layer.rounds},
      {"bytes_sent", layer.bytes_sent},
      {"bytes_received", layer.bytes_received},
      {"latency_seconds_mean", MeanLatencySeconds(layer)},
  };
}

Json PeerJson(const PeerTraffic& peer) {
  return {
      {"peer", peer.is_shard ? "shard" : "worker"},
      {"rank", peer.rank},
      {"bytes_sent", peer.bytes_sent},
      {"bytes_received", peer.bytes_received},
  };
}

double ImagesPerSecond(const TrainResult& result) {
  const double seconds = absl::ToDoubleSeconds(result.total);
  return seconds > 0.0 ? static_cast<double>(result.images) / seconds : 0.0;
}

}  // namespace

std::string TraceJson(absl::Span<const GpuSpan> spans,
                      absl::Span<const LayerSpec> specs) {
  // Rows of the trace, in the order of GpuSpan::Kind.
  constexpr const char* kRows[] = {"compute", "copy out", "copy in"};
  nlohmann::json events = nlohmann::json::array();
  for (const GpuSpan& span : spans) {
    const auto row = static_cast<size_t>(span.kind);
    events.push_back(
        {{"name", specs[span.layer].name},
         {"cat", kRows[row]},
         {"ph", "X"},
         {"ts", absl::ToDoubleMicroseconds(span.begin)},
         {"dur", absl::ToDoubleMicroseconds(span.end - span.begin)},
         {"pid", 0},
         {"tid", row},
         {"args", {{"step", span.step}}}});
  }
  for (size_t row = 0; row < std::size(kRows); ++row) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", row},
                      {"args", {{"name", kRows[row]}}}});
  }
  return nlohmann::json{{"traceEvents", events}}.dump();
}

double HiddenShare(absl::Span<const GpuSpan> spans) {
  // Spans of computing, which follow each other.
  std::vector<const GpuSpan*> computing;
  for (const GpuSpan& span : spans) {
    if (span.kind == GpuSpan::Kind::kCompute) computing.push_back(&span);
  }
  absl::Duration all;
  absl::Duration hidden;
  for (const GpuSpan& copy : spans) {
    if (copy.kind == GpuSpan::Kind::kCompute) continue;
    all += copy.end - copy.begin;
    // The spans of computing are in order: skips those that end before the
    // copy.
    auto compute = absl::c_partition_point(computing, [&](const GpuSpan* span) {
      return span->end <= copy.begin;
    });
    for (; compute != computing.end() && (*compute)->begin < copy.end;
         ++compute) {
      hidden += std::min(copy.end, (*compute)->end) -
                std::max(copy.begin, (*compute)->begin);
    }
  }
  return all > absl::ZeroDuration() ? absl::FDivDuration(hidden, all) : 0.0;
}

int64_t TotalBytes(const std::vector<PeerTraffic>& traffic) {
  int64_t bytes = 0;
  for (const PeerTraffic& peer : traffic) {
    bytes += peer.bytes_sent + peer.bytes_received;
  }
  return bytes;
}

std::string ProgressJson(int rank, const TrainProgress& progress,
                         int64_t bytes) {
  return Dump({
      {"event", "progress"},
      {"rank", rank},
      {"epoch", progress.epoch},
      {"epochs", progress.epochs},
      {"step", progress.step},
      {"steps", progress.steps},
      {"loss", progress.loss},
      {"images_per_second", progress.images_per_second},
      {"bytes", bytes},
  });
}

std::string DoneJson(const WorkerReport& report) {
  NEREUS_CHECK(report.layers.size() == report.specs.size())
      << report.layers.size() << " reports of " << report.specs.size()
      << " layers";
  const TrainResult& result = report.result;
  Json json = {
      {"event", "done"},
      {"rank", report.rank},
      {"joins", report.joins},
      {"workers", report.workers},
      {"steps", result.steps},
      {"last_step", result.last_step},
      {"saved_round",
       report.saved_round.has_value() ? Json(*report.saved_round) : Json()},
      {"skipped_steps", result.skipped},
      {"train_loss", result.train_loss},
      {"test_accuracy", nullptr},
      {"images", result.images},
      {"seconds", absl::ToDoubleSeconds(result.total)},
      {"forward_seconds", absl::ToDoubleSeconds(result.forward)},
      {"backward_seconds", absl::ToDoubleSeconds(result.backward)},
      {"wait_seconds", absl::ToDoubleSeconds(result.wait)},
      {"parameter_checksum",
       absl::StrCat(absl::Hex(report.parameter_checksum, absl::kZeroPad8))},
      {"initial_bytes", report.initial_bytes},
      {"measured", nullptr},
      {"layers", Json::array()},
      {"traffic", Json::array()},
  };
  // A worker that has not measured enough steps reports null.
  if (report.measured.has_value()) {
    const LinkSpeed& link = report.measured->link;
    json["measured"] = {
        {"step_seconds", absl::ToDoubleSeconds(report.measured->step_time)},
        {"bytes_per_second", link.rate},
        {"latency_seconds", absl::ToDoubleSeconds(link.latency)},
        {"message_seconds", absl::ToDoubleSeconds(link.message_time)},
    };
  }
  if (report.test_accuracy.has_value()) {
    json["test_accuracy"] = *report.test_accuracy;
  }
  for (size_t i = 0; i < report.specs.size(); ++i) {
    Json layer = LayerJson(report.specs[i], report.layers[i]);
    if (report.measured.has_value()) {
      const LayerTime& time = report.measured->times[i];
      layer["forward_seconds"] = absl::ToDoubleSeconds(time.forward);
      layer["backward_seconds"] = absl::ToDoubleSeconds(time.backward);
    }
    json["layers"].push_back(std::move(layer));
  }
  for (const PeerTraffic& peer : report.traffic) {
    json["traffic"].push_back(PeerJson(peer));
  }
  return Dump(json);
}

std::string ProgressText(const TrainProgress& progress, int64_t bytes) {
  return absl::StrFormat(
      "epoch %d/%d step %d/%d loss %.4f images/s %.0f bytes %d", progress.epoch,
      progress.epochs, progress.step, progress.steps, progress.loss,
      progress.images_per_second, bytes);
}

std::vector<std::string> DoneText(const WorkerReport& report) {
  const TrainResult& result = report.result;
  std::vector<std::string> lines;
  // The number appears only if there is something to explain.
  const std::string skipped =
      result.skipped == 0 ? ""
                          : absl::StrCat(" (", result.skipped, " skipped)");
  lines.push_back(absl::StrFormat(
      "done: %d steps%s in %.2f s (forward %.2f, backward %.2f, wait %.2f), "
      "%.0f images/s, train loss %.4f, test accuracy %s, parameters %08x",
      result.steps, skipped, absl::ToDoubleSeconds(result.total),
      absl::ToDoubleSeconds(result.forward),
      absl::ToDoubleSeconds(result.backward),
      absl::ToDoubleSeconds(result.wait), ImagesPerSecond(result),
      result.train_loss,
      report.test_accuracy.has_value()
          ? absl::StrFormat("%.4f", *report.test_accuracy)
          : "not measured",
      report.parameter_checksum));
  for (const LayerReport& layer : report.layers) {
    lines.push_back(absl::StrFormat(
        "layer %s: scheme %s, wire %s, %d rounds, sent %d bytes, received %d, "
        "mean latency %.2f ms; %s",
        layer.name, layer.scheme, layer.wire, layer.rounds, layer.bytes_sent,
        layer.bytes_received, 1e3 * MeanLatencySeconds(layer), layer.reason));
  }
  return lines;
}

}  // namespace nereus
