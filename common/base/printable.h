#pragma once

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace nereus {

// Returns `text`, which comes from another process, in a form for messages.
// Bytes that are not printable ASCII become escapes such as \n or \x1f; all
// other bytes stay. Text with line feeds could otherwise forge log lines.
inline std::string Printable(absl::string_view text) {
  std::string printable;
  for (const char& byte : text) {
    if (absl::ascii_isprint(static_cast<unsigned char>(byte))) {
      printable.push_back(byte);
    } else {
      printable += absl::CHexEscape(absl::string_view(&byte, 1));
    }
  }
  return printable;
}

}  // namespace nereus
