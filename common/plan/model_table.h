#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Largest number of samples that one worker may take in one step.
inline constexpr int64_t kBatchMax = int64_t{1} << 20;

// Returns OK if `batch` is from 1 to kBatchMax. Errors: kInvalidArgument.
absl::Status CheckBatch(int64_t batch);

// Returns the names of the models that come with Nereus, sorted.
std::vector<std::string> ModelNames();

// Returns the layers of the model that is called `name`, for workers that take
// `batch` samples in each step.
//
// Errors: kNotFound, with the known names; kInvalidArgument, `batch` is not
// from 1 to kBatchMax, or so large that a layer would have more than
// kLayerRowsMax rows.
absl::StatusOr<std::vector<LayerSpec>> LoadModel(absl::string_view name,
                                                 int64_t batch);

// Returns the layers that a table describes. Lines that are empty or begin with
// '#' are skipped; the first other line is the header
//
//   name,kind,m,n,parameters,rows_per_sample
//
// and each further line is a layer, in forward order. The fields are those of
// LayerSpec, with rows = rows_per_sample * batch. The kinds are those of
// ParseLayerKind, and "fc-tied": a fully connected layer that shares its matrix
// with another layer, and so has no factors. rows_per_sample is 1 for a fully
// connected layer of an image network, the sequence length in a transformer,
// and the number of output pixels for a convolution. For embeddings and vectors
// it has no effect on plans. A table has no quotes and no spaces around fields;
// lines may end in CR LF. docs/models.md explains how to write a table. `text`
// may be hostile.
//
// Errors: kInvalidArgument. The message names the line, and the column if one
// field is wrong ("line 3, column 4 (n): ..."). If `batch` is wrong, the error
// is that of CheckBatch. If each line is right, but not all together, the error
// is that of ValidateLayers.
absl::StatusOr<std::vector<LayerSpec>> ParseModelTable(absl::string_view text,
                                                       int64_t batch);

}  // namespace nereus
