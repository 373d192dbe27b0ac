#include "common/base/logging.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/names.h"
#include "nlohmann/json.hpp"

namespace nereus {
namespace {

// Level of the process. Atomic, because every log statement reads it, and a
// lock would cost too much.
std::atomic<LogLevel> log_level{LogLevel::kInfo};

// Returns the format of the process.
std::atomic<LogFormat>& TheFormat() {
  static std::atomic<LogFormat> format = [] {
    const char* const variable = std::getenv("NEREUS_LOG_FORMAT");
    return variable != nullptr && absl::string_view(variable) == "json"
               ? LogFormat::kJson
               : LogFormat::kText;
  }();
  return format;
}

// Receives log lines; null: standard error.
std::atomic<LogSink> log_sink{nullptr};

// Facts about this process, for its log lines.
struct Speaker {
  Mutex mu;
  LogContext context ABSL_GUARDED_BY(mu);
};

// Returns the only Speaker. It is never destroyed: threads may log until the
// process ends.
Speaker& TheSpeaker() {
  static Speaker& speaker = *new Speaker;
  return speaker;
}

// Writes a line to standard error. Copies the context first, so that no lock is
// held during the write.
void WriteLine(LogLevel level, const LogFields& fields,
               const std::string& text) {
  LogContext context;
  {
    Speaker& speaker = TheSpeaker();
    MutexLock lock(&speaker.mu);
    context = speaker.context;
  }
  const std::string line =
      FormatLogLine(TheFormat(), context, absl::Now(), level, fields, text);
  // A failed write is ignored: there is no other place to report it.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

// Hands a line to the sink, or writes it.
void Deliver(LogLevel level, const LogFields& fields, const std::string& text) {
  if (const LogSink sink = log_sink) {
    sink(level, text);
  } else {
    WriteLine(level, fields, text);
  }
}

constexpr Named<LogLevel> kLevelNames[] = {{LogLevel::kDebug, "DEBUG"},
                                           {LogLevel::kInfo, "INFO"},
                                           {LogLevel::kWarning, "WARNING"},
                                           {LogLevel::kError, "ERROR"},
                                           {LogLevel::kCritical, "CRITICAL"}};

std::string FormatJson(const LogContext& context, const std::string& time,
                       absl::string_view severity, const LogFields& fields,
                       const std::string& text) {
  nlohmann::ordered_json json = {
      {"time", time}, {"severity", std::string(severity)}, {"message", text}};
  const auto add_text = [&](const char* key, std::string value) {
    if (!value.empty()) json[key] = std::move(value);
  };
  const auto add_number = [&](const char* key, int64_t value) {
    if (value >= 0) json[key] = value;
  };
  add_text("job", context.job);
  add_text("role", context.role);
  add_number("rank", context.rank);
  add_text("name", context.name);
  add_number("epoch", fields.epoch >= 0 ? fields.epoch : context.epoch);
  add_number("step", fields.step);
  add_text("layer", fields.layer);
  add_text("event", std::string(NameOf<kLogEventNames>(fields.event)));
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

void SetLogLevel(LogLevel level) { log_level = level; }
LogLevel GetLogLevel() { return log_level; }
void SetLogFormat(LogFormat format) { TheFormat() = format; }
LogFormat GetLogFormat() { return TheFormat(); }
void SetLogSink(LogSink sink) { log_sink = sink; }

void ChangeLogContext(absl::FunctionRef<void(LogContext&)> change) {
  Speaker& speaker = TheSpeaker();
  MutexLock lock(&speaker.mu);
  change(speaker.context);
}

std::string LogContext::Label() const {
  if (role == "server") return absl::StrCat("shard ", rank);
  if (role == "worker") return absl::StrCat("worker ", name);
  return role.empty() ? "nereus" : role;
}

std::string FormatLogLine(LogFormat format, const LogContext& context,
                          absl::Time time, LogLevel level,
                          const LogFields& fields, const std::string& text) {
  const std::string utc =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
  const absl::string_view severity = NameOf<kLevelNames>(level);
  if (format == LogFormat::kJson) {
    return absl::StrCat(FormatJson(context, utc, severity, fields, text), "\n");
  }
  return absl::StrCat(utc, " ", severity, " [", context.Label(), "] ", text,
                      "\n");
}

void WriteLog(LogLevel level, const LogFields& fields,
              const std::string& text) {
  if (level >= log_level.load()) Deliver(level, fields, text);
}

namespace internal {

LogLine::~LogLine() { Deliver(level_, fields_, stream_.str()); }

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  WriteLine(LogLevel::kCritical, {}, stream_.str());
  std::abort();
}

}  // namespace internal
}  // namespace nereus
