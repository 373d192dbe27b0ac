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

std::optional<LogCollector::Line> LogCollector::Take(
    std::optional<size_t> bytes_max) {
  MutexLock lock(&mu_);
  if (!rest_.has_value()) Next();
  if (!rest_.has_value() || !bytes_max.has_value()) return rest_;
  if (rest_->text.size() <= *bytes_max) {
    return std::exchange(rest_, std::nullopt);
  }
  Line line = *rest_;
  rest_->text.erase(0, *bytes_max);
  return line;
}

void LogCollector::Next() {
  if (lost_count_ > 0) {
    rest_ = Line{LogLevel::kWarning,
                 absl::StrCat(std::exchange(lost_count_, 0),
                              " log lines are lost: they came faster than they "
                              "were taken")};
  } else if (!lines_.empty()) {
    rest_ = std::move(lines_.front());
    lines_.pop_front();
  }
}

void LogCollector::Trim() {
  while (lines_.size() > lines_max_) {
    lines_.pop_front();
    ++lost_count_;
  }
}

}  // namespace nereus
