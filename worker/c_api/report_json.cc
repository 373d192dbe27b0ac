#include "worker/c_api/report_json.h"

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

namespace nereus {
namespace {

nlohmann::json MeasuredJson(const Measurements& measured) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerTime& time : measured.times) {
    layers.push_back(
        {{"forward_seconds", absl::ToDoubleSeconds(time.forward)},
         {"backward_seconds", absl::ToDoubleSeconds(time.backward)}});
  }
  nlohmann::json json = {
      {"layers", layers},
      {"step_seconds", absl::ToDoubleSeconds(measured.step_time)}};
  if (measured.link.has_value()) {
    json["link_bytes_per_second"] = measured.link->rate;
    json["link_latency_seconds"] =
        absl::ToDoubleSeconds(measured.link->latency);
  }
  if (measured.memory_rate.has_value()) {
    json["memory_bytes_per_second"] = *measured.memory_rate;
  }
  return json;
}

}  // namespace

std::string ReportJson(const ClientReport& report) {
  nlohmann::json json = {{"layers", nlohmann::json::array()},
                         {"peers", nlohmann::json::array()}};
  for (const LayerReport& layer : report.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"scheme", layer.scheme},
                              {"wire", layer.wire},
                              {"reason", layer.reason},
                              {"rounds", layer.rounds},
                              {"bytes_sent", layer.bytes_sent},
                              {"bytes_received", layer.bytes_received},
                              {"latency_total_seconds",
                               absl::ToDoubleSeconds(layer.latency_total)}});
  }
  for (const PeerTraffic& peer : report.peers) {
    json["peers"].push_back({{"kind", peer.is_shard ? "server" : "worker"},
                             {"rank", peer.rank},
                             {"bytes_sent", peer.bytes_sent},
                             {"bytes_received", peer.bytes_received}});
  }
  if (report.measured.has_value()) {
    json["measured"] = MeasuredJson(*report.measured);
  }
  if (report.saved_round.has_value()) {
    json["saved_round"] = *report.saved_round;
  }
  return json.dump();
}

}  // namespace nereus
