#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"

namespace nereus {

// Keeps the last log lines of this process for a caller that asks for them, for
// example to print them in a notebook. If the caller is too slow, the oldest
// lines are lost, and the next one says how many. Thread-safe.
class LogCollector {
 public:
  struct Line {
    LogLevel level = LogLevel::kInfo;
    std::string text;  // Without a line feed.
  };

  // Sets the number of lines that are kept; drops the oldest of more.
  void SetLinesMax(size_t lines_max) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a line.
  void Add(LogLevel level, const std::string& text) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the oldest line, if there is one.
  std::optional<Line> Take() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Drops the oldest lines beyond the limit.
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  size_t lines_max_ ABSL_GUARDED_BY(mu_) = 0;    // Limit of `lines_`.
  std::deque<Line> lines_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  int64_t lost_count_ ABSL_GUARDED_BY(mu_) = 0;  // Lines lost since Take.
};

}  // namespace nereus
