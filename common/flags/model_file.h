#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Largest file that ReadTextFile reads. Any real table or trace is far smaller,
// but a wrong file name, such as a device, must not fill the memory.
inline constexpr int64_t kInputFileBytesMax = int64_t{16} << 20;

// Reads a whole file. Errors: kUnavailable, with the name and the reason: the
// file cannot be read, or has more than kInputFileBytesMax bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& name);

// Writes `text` and a newline to a file. Errors: kUnavailable, with the name
// and the reason.
absl::Status WriteTextFile(const std::string& name, const std::string& text);

// Returns the layers of a known model. A name that ends in .csv or contains a
// slash is a file with a table of layers (docs/models.md).
// Errors: those of LoadModel and of ReadTextFile; kDataLoss, the file is no
// table of layers.
absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch);

// Returns the help text of a flag for LoadModelOrFile, with the known models.
std::string DescribeModelFlag();

}  // namespace nereus
