#include "server/admin/line_buffer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {

std::vector<std::string> LineBuffer::Append(absl::string_view bytes) {
  std::vector<std::string> lines;
  size_t end = 0;
  while ((end = bytes.find('\n')) != absl::string_view::npos) {
    Extend(bytes.substr(0, end));
    lines.push_back(TakeLine());
    bytes.remove_prefix(end + 1);
  }
  Extend(bytes);
  return lines;
}

std::optional<std::string> LineBuffer::Finish() {
  if (line_.empty() && dropped_bytes_ == 0) return std::nullopt;
  return TakeLine();
}

std::string LineBuffer::TakeLine() {
  if (dropped_bytes_ > 0) {
    absl::StrAppend(&line_, " (", std::exchange(dropped_bytes_, 0),
                    " more bytes are cut)");
  }
  return std::exchange(line_, std::string());
}

// Bytes beyond the limit are dropped until the next line feed.
void LineBuffer::Extend(absl::string_view part) {
  const size_t kept = std::min(line_bytes_max_ - line_.size(), part.size());
  line_.append(part.data(), kept);
  dropped_bytes_ += part.size() - kept;
}

}  // namespace nereus
