#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Largest file that ReadTextFile reads. Tables and traces are far smaller. The
// limit keeps a wrong name, such as that of a device, from filling the memory.
inline constexpr int64_t kInputFileBytesMax = int64_t{16} << 20;

// Reads a whole file. Errors: kUnavailable, with the name and the reason: the
// file cannot be read, or has more than kInputFileBytesMax bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& name);

// Writes `text` and a newline to a file. Errors: kUnavailable, with the name
// and the reason.
absl::Status WriteTextFile(const std::string& name, const std::string& text);

// Returns the layers of a model, for workers that take `batch` samples in each
// step. If `model` ends in .csv or contains a slash, it is the path of a table
// of layers (docs/models.md), else the name of a known model. Errors: those of
// LoadModel; those of ReadTextFile; kDataLoss, ParseModelTable refuses the
// file, or a layer of it would have too many rows with `batch`.
absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch);

// Returns the help text of a flag for LoadModelOrFile, with the known models.
std::string DescribeModelFlag();

}  // namespace nereus
