#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nereus {

// Cuts a stream of bytes, as it arrives in pieces, into lines. Thread-
// compatible. Holds one unfinished line, `line_bytes_max` bytes of it at most:
// what exceeds that is dropped up to the next line feed, so that a process that
// never ends its line costs bounded memory.
class LineBuffer {
 public:
  explicit LineBuffer(size_t line_bytes_max)
      : line_bytes_max_(line_bytes_max) {}

  // Adds what was read and returns the lines it finished, without line feeds.
  std::vector<std::string> Append(absl::string_view bytes);

  // The unfinished line at the end of the stream, if there is one.
  std::optional<std::string> Finish();

 private:
  void Extend(absl::string_view part);

  const size_t line_bytes_max_;
  std::string line_;
};

}  // namespace nereus
