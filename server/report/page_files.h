#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nereus {

// File of the status page, which is part of this program.
struct PageFile {
  absl::string_view name;  // Name without its suffix.
  absl::string_view text;
};

// Returns the files, sorted by name: "page" (HTML), "script" (JavaScript) and
// "style" (CSS).
absl::Span<const PageFile> PageFiles();

}  // namespace nereus
