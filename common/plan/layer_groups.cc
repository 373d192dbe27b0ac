#include "common/plan/layer_groups.h"

#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace nereus {

std::vector<LayerGroup> GroupLayers(absl::Span<const LayerSpec> layers,
                                    absl::Span<const Route> routes,
                                    bool each_alone) {
  // Returns the properties that are the same for all layers of a group.
  const auto key_of = [&](size_t i) {
    const LayerSpec& layer = layers[i];
    return std::tuple(layer.kind, layer.m, layer.n, layer.parameters,
                      layer.rows, layer.has_factors, routes[i].scheme,
                      routes[i].wire, each_alone ? i : 0);
  };
  std::vector<LayerGroup> groups;
  absl::flat_hash_map<decltype(key_of(0)), size_t> group_of;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto [at, is_first] = group_of.emplace(key_of(i), groups.size());
    if (is_first) groups.push_back({{}, layers[i].name});
    groups[at->second].layers.push_back(i);
  }
  for (LayerGroup& group : groups) {
    const size_t more = group.layers.size() - 1;
    if (more > 0) absl::StrAppend(&group.name, " and ", more, " like it");
  }
  return groups;
}

}  // namespace nereus
