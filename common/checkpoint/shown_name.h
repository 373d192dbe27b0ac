#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nereus {

// Returns a name from a file in a form for error messages: the first 300 bytes,
// escaped and in quotes. `name` may have any length and any bytes.
inline std::string ShownName(absl::string_view name) {
  constexpr size_t kShownMax = 300;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShownMax)), "\"",
                      name.size() > kShownMax ? "..." : "");
}

}  // namespace nereus
