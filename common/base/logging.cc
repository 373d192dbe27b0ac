#include "common/base/logging.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/names.h"

namespace nereus {
namespace {

// Level of the process. Atomic, because every log statement reads it, and a
// lock would cost too much.
std::atomic<LogLevel> log_level{LogLevel::kInfo};

// Receives log lines; null: standard error.
std::atomic<LogSink> log_sink{nullptr};

// Name of this process in its log lines.
struct Speaker {
  Mutex mu;
  std::string name ABSL_GUARDED_BY(mu) = "nereus";
};

// Returns the only Speaker. It is never destroyed: threads may log until the
// process ends.
Speaker& TheSpeaker() {
  static Speaker& speaker = *new Speaker;
  return speaker;
}

// Writes a line to standard error. Copies the name first, so that no lock is
// held during the write.
void WriteLine(absl::string_view level, const std::string& text) {
  std::string name;
  {
    Speaker& speaker = TheSpeaker();
    MutexLock lock(&speaker.mu);
    name = speaker.name;
  }
  const std::string line = absl::StrCat(
      absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), " ",
      level, " [", name, "] ", text, "\n");
  // A failed write is ignored: there is no other place to report it.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

constexpr Named<LogLevel> kLevelNames[] = {{LogLevel::kDebug, "DEBUG"},
                                           {LogLevel::kInfo, "INFO"},
                                           {LogLevel::kWarning, "WARNING"},
                                           {LogLevel::kError, "ERROR"}};

}  // namespace

void SetLogLevel(LogLevel level) { log_level = level; }
LogLevel GetLogLevel() { return log_level; }
void SetLogSink(LogSink sink) { log_sink = sink; }

void SetLogName(const std::string& name) {
  Speaker& speaker = TheSpeaker();
  MutexLock lock(&speaker.mu);
  speaker.name = name;
}

namespace internal {

LogLine::~LogLine() {
  if (const LogSink sink = log_sink) {
    sink(level_, stream_.str());
  } else {
    WriteLine(NameOf<kLevelNames>(level_), stream_.str());
  }
}

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  WriteLine("FATAL", stream_.str());
  std::abort();
}

}  // namespace internal
}  // namespace nereus
