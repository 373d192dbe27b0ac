#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Samples that one worker takes in one step, at most.
inline constexpr int64_t kBatchMax = int64_t{1} << 20;

// Names of the models that come with Nereus, sorted.
std::vector<std::string> ModelNames();

// The layers of one of those models, for a worker that takes `batch` samples a
// step.
//
// Errors: kNotFound, with the known names; kInvalidArgument, `batch` not from 1
// to kBatchMax, or so large that a layer would have more than kLayerRowsMax
// rows.
absl::StatusOr<std::vector<LayerSpec>> LoadModel(absl::string_view name,
                                                 int64_t batch);

// The layers that a table describes. Lines that are empty or begin with '#' are
// skipped; the first other line is the header
//
//   name,kind,m,n,parameters,rows_per_sample
//
// and each further line is a layer, in forward order. Fields are LayerSpec's,
// with rows = rows_per_sample * batch. Kinds are ParseLayerKind's, and fc-tied:
// a fully connected layer that has its matrix in common with another layer, and
// so no factors. docs/models.md is for those who write tables. rows_per_sample
// is 1 for a fully connected layer of an image network, the sequence length in
// a transformer; of layers without factors it decides nothing. No quoting, no
// spaces around fields; lines may end in CR LF.
//
// Errors: kInvalidArgument, with the line and the column ("line 3, column 4
// (n): ..."), or for the model as a whole what ValidateLayers says.
absl::StatusOr<std::vector<LayerSpec>> ParseModelTable(absl::string_view text,
                                                       int64_t batch);

}  // namespace nereus
