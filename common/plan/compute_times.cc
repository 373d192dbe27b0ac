#include "common/plan/compute_times.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "common/base/json_fields.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

// Returns the floating-point operations of one product of the layer's matrix
// with its input; 0 for embeddings and vectors, and if the rows of the input
// are not known. A step makes three such products for every layer (one forward,
// two backward). This factor of 3 does not matter, because callers only compare
// layers.
double Operations(const LayerSpec& layer) {
  const bool multiplies = layer.kind == LayerKind::kFullyConnected ||
                          layer.kind == LayerKind::kConvolution;
  if (!multiplies || layer.rows <= 0) return 0.0;
  return 2.0 * static_cast<double>(layer.m) * static_cast<double>(layer.n) *
         static_cast<double>(layer.rows);
}

// Returns `text` for messages, escaped and cut, because a file may contain any
// bytes.
std::string Shown(absl::string_view text) {
  constexpr size_t kShownBytesMax = 80;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShownBytesMax)),
                      text.size() > kShownBytesMax ? "...\"" : "\"");
}

// Entry of one layer in a trace.
struct TraceEntry {
  std::string name;  // Name of the layer.
  LayerTime time;    // Times of the layer.
};

// Lists a time of a pass, at most kComputeTimeMax.
void ListTime(JsonFields& fields, const char* name, absl::Duration& time) {
  double seconds = absl::ToDoubleSeconds(time);
  fields.Seconds(name, seconds);
  time = absl::Seconds(seconds);
  if (time <= kComputeTimeMax) return;
  fields.Check(InvalidArgumentError(name, " is ", seconds,
                                    ", must be from 0 to ",
                                    absl::ToDoubleSeconds(kComputeTimeMax)));
}

void ListEntry(JsonFields& fields, TraceEntry& entry) {
  fields.Text("name", entry.name);
  fields.AppendToPath(absl::StrCat(" (", Shown(entry.name), ")"));
  ListTime(fields, "forward_seconds", entry.time.forward);
  ListTime(fields, "backward_seconds", entry.time.backward);
}

// Returns OK if every layer has times. Otherwise the error names up to
// kNamedMax layers without times.
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
  const nlohmann::json json = ParseJson(text);
  JsonFields fields(json, "compute trace");
  std::vector<TraceEntry> entries;
  fields.Objects("layers", entries, ListEntry);
  NEREUS_TRY(fields.status());
  absl::flat_hash_map<absl::string_view, size_t> index;
  for (size_t i = 0; i < layers.size(); ++i) index[layers[i].name] = i;

  std::vector<std::optional<LayerTime>> times(layers.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [name, time] = entries[i];
    const auto found = index.find(name);
    const bool is_known = found != index.end();
    if (is_known && !times[found->second].has_value()) {
      times[found->second] = time;
      continue;
    }
    return InvalidArgumentError(
        "compute trace: layers[", i, "] (", Shown(name), ")",
        is_known ? " repeats the layer of an earlier entry"
                 : " is not a layer of the model");
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
