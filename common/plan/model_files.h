#pragma once

#include "absl/types/span.h"

namespace nereus {

// One file of common/plan/models/.
struct ModelFile {
  const char* name;  // Without ".csv".
  const char* text;
};

// All of them, by name: built into the program, so that it needs no data
// beside it.
absl::Span<const ModelFile> ModelFiles();

}  // namespace nereus
