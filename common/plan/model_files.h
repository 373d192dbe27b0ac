#pragma once

#include "absl/types/span.h"

namespace nereus {

// Model table that comes with Nereus: a file in common/plan/models/.
struct ModelFile {
  const char* name;  // Name of the model: file name without ".csv".
  const char* text;  // Content of the file (ParseModelTable).
};

// Returns all model files, sorted by name. The build puts them into the
// program, so that the program needs no data files.
absl::Span<const ModelFile> ModelFiles();

}  // namespace nereus
