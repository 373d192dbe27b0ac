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

double MeanLatencySeconds(const LayerReport& layer) {
  if (layer.rounds == 0) return 0.0;
  return absl::ToDoubleSeconds(layer.latency_total) /
         static_cast<double>(layer.rounds);
}

double ImagesPerSecond(const WorkerResult& result) {
  const double seconds = result.seconds.total;
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

int64_t TotalBytes(const std::vector<PeerTraffic>& traffic) {
  int64_t bytes = 0;
  for (const PeerTraffic& peer : traffic) {
    bytes += peer.bytes_sent + peer.bytes_received;
  }
  return bytes;
}

WorkerProgress MakeProgress(int rank, const TrainProgress& progress,
                            int64_t bytes) {
  return {rank,
          progress.epoch,
          progress.epochs,
          progress.step,
          progress.steps,
          progress.loss,
          progress.images_per_second,
          bytes};
}

WorkerResult MakeResult(const TrainResult& result, const ClientReport& costs,
                        absl::Span<const LayerSpec> specs) {
  NEREUS_CHECK(costs.layers.size() == specs.size())
      << costs.layers.size() << " reports of " << specs.size() << " layers";
  WorkerResult made;
  made.workers = result.workers;
  made.steps = {result.steps, result.last_step, result.skipped,
                result.train_loss};
  made.saved_round = costs.saved_round;
  made.images = result.images;
  made.seconds = {absl::ToDoubleSeconds(result.total),
                  absl::ToDoubleSeconds(result.forward),
                  absl::ToDoubleSeconds(result.backward),
                  absl::ToDoubleSeconds(result.wait),
                  absl::ToDoubleSeconds(costs.turn_time)};
  // A worker that has not measured enough steps reports no measurements.
  if (costs.measured.has_value()) {
    made.measured = {costs.measured->step_time, costs.measured->link,
                     costs.measured->memory_rate,
                     costs.measured->waits_in_forward};
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const LayerReport& cost = costs.layers[i];
    made.layers.push_back({specs[i], cost.scheme, cost.wire, cost.reason,
                           cost.rounds, cost.bytes_sent, cost.bytes_received,
                           MeanLatencySeconds(cost)});
    if (costs.measured.has_value()) {
      made.layers.back().time = costs.measured->times[i];
    }
  }
  for (const PeerTraffic& peer : costs.peers) {
    made.traffic.push_back(
        {peer.is_shard, peer.rank, peer.bytes_sent, peer.bytes_received});
  }
  return made;
}

std::string ProgressText(const WorkerProgress& progress) {
  return absl::StrFormat(
      "epoch %d/%d step %d/%d loss %.4f images/s %.0f bytes %d", progress.epoch,
      progress.epochs, progress.step, progress.steps, progress.loss,
      progress.images_per_second, progress.bytes);
}

std::vector<std::string> DoneText(const WorkerResult& result) {
  std::vector<std::string> lines;
  // These numbers appear only if there is something to explain.
  const std::string skipped =
      result.steps.skipped == 0
          ? ""
          : absl::StrCat(" (", result.steps.skipped, " skipped)");
  const std::string turn =
      result.seconds.turn == 0
          ? ""
          : absl::StrFormat(", turn %.2f", result.seconds.turn);
  lines.push_back(absl::StrFormat(
      "done: %d steps%s in %.2f s (forward %.2f, backward %.2f, wait %.2f%s), "
      "%.0f images/s, train loss %.4f, test accuracy %s, parameters %s",
      result.steps.done, skipped, result.seconds.total, result.seconds.forward,
      result.seconds.backward, result.seconds.wait, turn,
      ImagesPerSecond(result), result.steps.train_loss,
      result.test_accuracy.has_value()
          ? absl::StrFormat("%.4f", *result.test_accuracy)
          : "not measured",
      result.parameter_checksum));
  for (const LayerResult& layer : result.layers) {
    lines.push_back(absl::StrFormat(
        "layer %s: scheme %s, wire %s, %d rounds, sent %d bytes, received %d, "
        "mean latency %.2f ms; %s",
        layer.spec.name, layer.scheme, layer.wire, layer.rounds,
        layer.bytes_sent, layer.bytes_received,
        1e3 * layer.latency_seconds_mean, layer.reason));
  }
  return lines;
}

}  // namespace nereus
