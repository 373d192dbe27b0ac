#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nereus {

// Cuts a stream of bytes into lines, as the bytes arrive. Holds at most
// `line_bytes_max` bytes of a line. Drops the rest of a longer line, and adds
// the number of dropped bytes to its end. So a process that never ends its line
// does not fill the memory. Thread-compatible.
class LineBuffer {
 public:
  explicit LineBuffer(size_t line_bytes_max)
      : line_bytes_max_(line_bytes_max) {}

  // Adds bytes, and returns the lines that they end, without line feeds.
  std::vector<std::string> Append(absl::string_view bytes);

  // Returns the bytes after the last line feed, as a line; nothing if there are
  // none.
  std::optional<std::string> Finish();

 private:
  // Ends the unfinished line, and returns it.
  std::string TakeLine();
  // Adds bytes to the unfinished line, up to the limit.
  void Extend(absl::string_view part);

  const size_t line_bytes_max_;
  std::string line_;          // The unfinished line.
  size_t dropped_bytes_ = 0;  // Bytes of this line beyond the limit.
};

}  // namespace nereus
