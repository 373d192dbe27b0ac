#include "server/admin/line_buffer.h"

#include <algorithm>
#include <utility>

namespace nereus {

std::vector<std::string> LineBuffer::Append(absl::string_view bytes) {
  std::vector<std::string> lines;
  size_t end = 0;
  while ((end = bytes.find('\n')) != absl::string_view::npos) {
    Extend(bytes.substr(0, end));
    lines.push_back(std::exchange(line_, std::string()));
    bytes.remove_prefix(end + 1);
  }
  Extend(bytes);
  return lines;
}

std::optional<std::string> LineBuffer::Finish() {
  if (line_.empty()) return std::nullopt;
  return std::exchange(line_, std::string());
}

// Bytes beyond the limit are dropped until the next line feed.
void LineBuffer::Extend(absl::string_view part) {
  const size_t room = line_bytes_max_ - line_.size();
  line_.append(part.data(), std::min(room, part.size()));
}

}  // namespace nereus
