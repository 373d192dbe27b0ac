#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/plan/layer_spec.h"
#include "common/plan/route.h"

namespace nereus {

// Layers that share one line of a report.
struct LayerGroup {
  std::vector<size_t>
      layers;        // Indices of the layers, ascending, at least one.
  std::string name;  // Name for the line: "conv1", "conv1 and 11 like it".
};

// Puts layers into one group if they differ only in their names and have the
// same route. With `each_alone`, each layer is a group of its own. The groups
// are in the order of their first layers. `routes`: route of each layer.
std::vector<LayerGroup> GroupLayers(absl::Span<const LayerSpec> layers,
                                    absl::Span<const Route> routes,
                                    bool each_alone);

}  // namespace nereus
