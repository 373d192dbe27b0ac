#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Far above any real table or trace, so that a wrong file name does not fill
// memory.
inline constexpr int64_t kInputFileBytesMax = int64_t{16} << 20;

// Errors: kUnavailable, it cannot be read, or has more than kInputFileBytesMax
// bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& name);

// Writes `text` and a newline. Errors: kUnavailable.
absl::Status WriteTextFile(const std::string& name, const std::string& text);

// The layers of a known model, or, of a name that ends in .csv or has a slash,
// of the table in that file.
//
// Errors: those of LoadModel and of ReadTextFile; kDataLoss, the file is no
// table of layers.
absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch);

// "a known model (alexnet, ...) or a table ...", for the help of a flag.
std::string DescribeModelFlag();

}  // namespace nereus
