#include "common/base/logging.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace nereus {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};

ABSL_CONST_INIT absl::Mutex name_mu(absl::kConstInit);

std::string& Name() {
  static std::string& name = *new std::string("nereus");
  return name;
}

void WriteLine(const char* level, const std::string& text) {
  std::string name;
  {
    absl::MutexLock lock(&name_mu);
    name = Name();
  }
  const std::string line = absl::StrCat(
      absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), " ",
      level, " [", name, "] ", text, "\n");
  // Nothing sensible is left to do when standard error is gone.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

}  // namespace

void SetLogLevel(LogLevel level) { log_level = level; }
LogLevel GetLogLevel() { return log_level; }

void SetLogName(const std::string& name) {
  absl::MutexLock lock(&name_mu);
  Name() = name;
}

namespace internal {

LogLine::~LogLine() { WriteLine(LevelName(level_), stream_.str()); }

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  WriteLine("FATAL", stream_.str());
  std::abort();
}

}  // namespace internal
}  // namespace nereus
