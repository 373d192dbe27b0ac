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
// lines are lost, and an extra line says how many. Thread-safe.
class LogCollector {
 public:
  struct Line {
    LogLevel level = LogLevel::kInfo;
    std::string text;  // Without a line feed.
  };

  // Sets the number of lines that are kept. If there are more, drops the
  // oldest.
  void SetLinesMax(size_t lines_max) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a line.
  void Add(LogLevel level, const std::string& text) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns all that is left of the oldest line, if there is one, and takes the
  // first `bytes_max` bytes of it: the next call returns the bytes behind them.
  // If all bytes are taken, the next call returns the next line. Without
  // `bytes_max`, takes nothing.
  std::optional<Line> Take(std::optional<size_t> bytes_max)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Drops the oldest lines beyond the limit.
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets rest_ to the line about lost lines, if lines were lost, or else to the
  // oldest line, if there is one.
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  size_t lines_max_ ABSL_GUARDED_BY(mu_) = 0;  // Limit of `lines_`.
  // Line that is being taken, without the bytes that are taken already.
  std::optional<Line> rest_ ABSL_GUARDED_BY(mu_);
  std::deque<Line> lines_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  // Number of lost lines that no line has told of.
  int64_t lost_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nereus
