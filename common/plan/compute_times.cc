#include "common/plan/compute_times.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

using Json = nlohmann::json;

// Returns the floating-point operations of one product of the layer's matrix
// with its rows. The factor for three products (one forward, two backward) is
// the same for all layers and drops out.
double Operations(const LayerSpec& layer) {
  const bool multiplies = layer.kind == LayerKind::kFullyConnected ||
                          layer.kind == LayerKind::kConvolution;
  if (!multiplies) return 0.0;
  return 2.0 * static_cast<double>(layer.m) * static_cast<double>(layer.n) *
         static_cast<double>(layer.rows);
}

// Returns a text for messages, escaped and cut: a file may have any bytes.
std::string Shown(absl::string_view text) {
  constexpr size_t kShownBytesMax = 80;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytesMax)),
                      text.size() > kShownBytesMax ? "...\"" : "\"");
}

// Returns a time of an entry. `where` names the entry.
absl::StatusOr<absl::Duration> ReadSeconds(const Json& entry,
                                           const std::string& where,
                                           const char* field) {
  const auto found = entry.find(field);
  if (found == entry.end()) {
    return InvalidArgumentError(where, " has no ", field);
  }
  if (!found->is_number()) {
    return InvalidArgumentError(where, ": ", field, " is ", found->type_name(),
                                ", not a number");
  }
  const auto seconds = found->get<double>();
  // Written so that NaN fails.
  if (!(seconds >= 0.0 && seconds <= absl::ToDoubleSeconds(kComputeTimeMax))) {
    return InvalidArgumentError(where, ": ", field, " is ", seconds,
                                ", must be from 0 to ",
                                absl::ToDoubleSeconds(kComputeTimeMax));
  }
  return absl::Seconds(seconds);
}

// Returns OK if every layer has times; else the error names some of those that
// have none.
absl::Status CheckComplete(absl::Span<const LayerSpec> layers,
                           absl::Span<const std::optional<LayerTime>> times) {
  constexpr int kNamedMax = 5;
  std::string names;
  int missing = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (times[i].has_value()) continue;
    if (++missing <= kNamedMax) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", layers[i].name);
    }
  }
  if (missing == 0) return absl::OkStatus();
  if (missing > kNamedMax) {
    absl::StrAppend(&names, " and ", missing - kNamedMax, " more");
  }
  return InvalidArgumentError("layers of the model are missing: ", names);
}

}  // namespace

std::vector<LayerTime> SplitCompute(absl::Span<const LayerSpec> layers,
                                    absl::Duration compute,
                                    double backward_share) {
  NEREUS_CHECK(backward_share >= 0.0 && backward_share <= 1.0)
      << backward_share;
  double operations = 0.0;
  double parameters = 0.0;
  for (const LayerSpec& layer : layers) {
    operations += Operations(layer);
    parameters += static_cast<double>(layer.parameters);
  }
  std::vector<LayerTime> times;
  for (const LayerSpec& layer : layers) {
    const double part =
        operations > 0 ? Operations(layer) / operations
                       : static_cast<double>(layer.parameters) / parameters;
    times.push_back({compute * (part * (1.0 - backward_share)),
                     compute * (part * backward_share)});
  }
  return times;
}

absl::StatusOr<std::vector<LayerTime>> ParseComputeTrace(
    absl::string_view text, absl::Span<const LayerSpec> layers) {
  // The house has no exceptions: a text that is not JSON gives a discarded
  // value.
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return InvalidArgumentError("is not JSON");
  }
  if (!json.is_object() || !json.contains("layers") ||
      !json["layers"].is_array()) {
    return InvalidArgumentError(
        "must be a JSON object with an array \"layers\"");
  }
  absl::flat_hash_map<absl::string_view, size_t> index;
  for (size_t i = 0; i < layers.size(); ++i) index[layers[i].name] = i;

  std::vector<std::optional<LayerTime>> times(layers.size());
  int64_t position = 0;
  for (const Json& entry : json["layers"]) {
    std::string where = absl::StrCat("layers[", position++, "]");
    if (!entry.is_object() || !entry.contains("name") ||
        !entry["name"].is_string()) {
      return InvalidArgumentError(where,
                                  " must be an object with a string \"name\"");
    }
    const auto& name = entry["name"].get_ref<const std::string&>();
    absl::StrAppend(&where, " (", Shown(name), ")");
    const auto found = index.find(name);
    if (found == index.end()) {
      return InvalidArgumentError(where, " is no layer of the model");
    }
    if (times[found->second].has_value()) {
      return InvalidArgumentError(where, " is there a second time");
    }
    LayerTime& time = times[found->second].emplace();
    time.forward = NEREUS_TRY(ReadSeconds(entry, where, "forward_seconds"));
    time.backward = NEREUS_TRY(ReadSeconds(entry, where, "backward_seconds"));
  }
  NEREUS_TRY(CheckComplete(layers, times));
  std::vector<LayerTime> complete;
  for (const auto& time : times) complete.push_back(*time);
  return complete;
}

absl::Duration TotalTime(absl::Span<const LayerTime> times) {
  absl::Duration total;
  for (const LayerTime& time : times) total += time.forward + time.backward;
  return total;
}

}  // namespace nereus
