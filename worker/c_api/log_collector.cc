#include "worker/c_api/log_collector.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {

void LogCollector::SetLinesMax(size_t lines_max) {
  MutexLock lock(&mu_);
  lines_max_ = lines_max;
  Trim();
}

void LogCollector::Add(LogLevel level, const std::string& text) {
  MutexLock lock(&mu_);
  lines_.push_back({level, text});
  Trim();
}

std::optional<LogCollector::Line> LogCollector::Take() {
  MutexLock lock(&mu_);
  if (lost_count_ > 0) {
    return Line{LogLevel::kWarning,
                absl::StrCat(std::exchange(lost_count_, 0),
                             " log lines are lost: they came faster than they "
                             "were taken")};
  }
  if (lines_.empty()) return std::nullopt;
  Line line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

void LogCollector::Trim() {
  while (lines_.size() > lines_max_) {
    lines_.pop_front();
    ++lost_count_;
  }
}

}  // namespace nereus
