#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Report of a worker's caller about the factors of its layers: the rows that it
// has seen (LayerSpec::rows). A value type.
struct FactorRows {
  // Number of rows of each layer of the model; kRowsNotKnown: nothing is known,
  // or the layer has no factors; kFactorsLost: the gradient of the layer is no
  // product of factors any more.
  std::vector<int64_t> rows;

  // Adds a later report of the same caller: lost factors stay lost, and of two
  // numbers of rows the larger one counts. Returns true if this changed the
  // report. REQUIRES: both have as many layers, or this is empty.
  bool Add(const FactorRows& later);

  bool operator==(const FactorRows&) const = default;
};

// Returns OK if `report` can be the report about a model: it has a number for
// each layer, the numbers are in range, and only layers with
// LayerSpec::has_factors have another number than kRowsNotKnown. Errors:
// kInvalidArgument, with the layer and the number.
absl::Status CheckFactorRows(const FactorRows& report,
                             absl::Span<const LayerSpec> model);

}  // namespace nereus
