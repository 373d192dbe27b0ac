#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/compute_times.h"
#include "common/plan/layer_spec.h"

namespace nereus {

// Largest file that ReadTextFile reads: 16 MiB. Files of layers or of computing
// times are far smaller. If a user names a wrong file, such as an endless
// device, the limit keeps it from filling the memory.
inline constexpr int64_t kInputFileBytesMax = int64_t{16} << 20;

// Reads a whole file that a user has named. Leaves out a byte-order mark of
// UTF-8 (EF BB BF), with which spreadsheets and some editors begin a text file.
// Errors: kInvalidArgument, with the name and the reason: the file cannot be
// read, or has more than kInputFileBytesMax bytes.
absl::StatusOr<std::string> ReadTextFile(const std::string& name);

// Writes `text` and a newline to a file. Errors: kUnavailable, with the name
// and the reason.
absl::Status WriteTextFile(const std::string& name, const std::string& text);

// Returns the layers of a model, for workers that each take `batch` samples in
// a step. If `model` ends in .csv or contains a slash, it is the path of a file
// with a table of layers (docs/models.md); else it is the name of a known
// model. Errors: kInvalidArgument, because the user has named a wrong model or
// a wrong file: no model has that name; ReadTextFile cannot read the file;
// ParseModelTable refuses it; `batch` is wrong, or a layer would have too many
// rows with it.
absl::StatusOr<std::vector<LayerSpec>> LoadModelOrFile(const std::string& model,
                                                       int64_t batch);

// Returns the computing times of `layers` from a file that a user has named
// (ParseComputeTrace). Errors: kInvalidArgument: ReadTextFile cannot read the
// file, or ParseComputeTrace refuses it.
absl::StatusOr<std::vector<LayerTime>> LoadComputeTrace(
    const std::string& name, const std::vector<LayerSpec>& layers);

// Returns the help text of a flag whose value goes to LoadModelOrFile, with the
// names of the known models.
std::string DescribeModelFlag();

}  // namespace nereus
