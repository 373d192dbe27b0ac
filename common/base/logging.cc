#include "common/base/logging.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/base/log_writer.h"
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

// Returns the time now. Unlike absl::Now, takes no lock: a child of fork() may
// log although another thread of its parent held that lock.
absl::Time WallNow() {
  return absl::FromChrono(std::chrono::system_clock::now());
}

// Returns a line in the format of this process.
std::string MakeLine(LogLevel level, const LogFields& fields,
                     const std::string& text) {
  LogContext context;
  {
    Speaker& speaker = TheSpeaker();
    MutexLock lock(&speaker.mu);
    context = speaker.context;
  }
  return FormatLogLine(TheFormat(), context, WallNow(), level, fields, text);
}

// Returns the line in place of lines that were dropped (LogWriter).
std::string DescribeGap(int64_t count, absl::Duration ago) {
  const int64_t seconds =
      absl::ToInt64Seconds(absl::Ceil(ago, absl::Seconds(1)));
  return MakeLine(
      LogLevel::kWarning, {LogEvent::kLog},
      absl::StrCat(count, count == 1 ? " log line" : " log lines",
                   " of the last ", seconds, count == 1 ? " s was" : " s were",
                   " dropped, because the log's reader, or its disk, stood "
                   "still or was too slow"));
}

// Locks the mutexes of this file during a fork, so that no other thread holds
// them in the child.
void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS;
void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS;
void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS;

// Returns the only LogWriter.
LogWriter& TheWriter() {
  static LogWriter& writer = *[] {
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    return new LogWriter(DescribeGap);
  }();
  return writer;
}

void BeforeFork() {
  TheWriter().BeforeFork();
  TheSpeaker().mu.Lock();
}

void AfterForkInParent() {
  TheSpeaker().mu.Unlock();
  TheWriter().AfterForkInParent();
}

void AfterForkInChild() {
  TheSpeaker().mu.Unlock();
  TheWriter().AfterForkInChild();
}

// Writes the last lines when the process ends by exit() or by a return from
// main. Other ends call FlushLog. Registered when the program is loaded, so
// that it runs after the functions that the program registers.
[[maybe_unused]] const int kFlushesAtExit =
    std::atexit([] { FlushLog(kLogFlushLimit); });

// Writes a line to standard error.
void WriteLine(LogLevel level, const LogFields& fields,
               const std::string& text) {
  TheWriter().Write(MakeLine(level, fields, text),
                    /*is_important=*/level >= LogLevel::kError);
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
  add_text("member", fields.member);
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

bool FlushLog(absl::Duration limit) { return TheWriter().Flush(limit); }
int64_t DroppedLogLines() { return TheWriter().dropped_lines(); }

namespace internal {

LogLine::~LogLine() { Deliver(level_, fields_, stream_.str()); }

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": broken invariant: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  WriteLine(LogLevel::kCritical, {}, stream_.str());
  FlushLog(kLogFlushLimit);
  std::abort();
}

}  // namespace internal
}  // namespace nereus
