#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/log_event.h"

namespace nereus {

// Importance of a log line, ascending. kDebug: details. kInfo: decisions and
// changes of state. kWarning: an operator should look at it. kError: something
// has failed. kCritical: an invariant of this program is broken.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kCritical };

// Form of the log lines on standard error.
//
//   kText: 2026-11-27T14:03:11.123Z INFO [shard 0] epoch 2 with 3 workers ...
//   kJson: an object with the keys `time`, `severity` and `message`; then, as
//     far as they are known, `job`, `role`, `rank`, `name` and `epoch` (see
//     LogContext), `step`, `layer` and `event` (see LogFields)
//
// Times are in UTC. Bytes of a message that are not UTF-8 become U+FFFD in
// JSON.
enum class LogFormat { kText, kJson };

// Facts about this process that its log lines repeat. Empty or -1: not known.
struct LogContext {
  std::string job = {};   // Name of the job.
  std::string role = {};  // "server", "worker", "coordinator" or other.
  int64_t rank = -1;      // Rank of a worker, shard of a server.
  std::string name = {};  // Name of the worker, or HOST:PID of another process.
  int64_t epoch = -1;     // Epoch that this process is in.

  // Returns the name of the process in text lines: "shard 0", "worker 2"; a
  // role that is neither server nor worker; "nereus" without a role.
  std::string Label() const;
};

// Sets the level of the process: lines below it are dropped. The level is kInfo
// until the first call. Any thread may call the functions of this file.
void SetLogLevel(LogLevel level);
// Returns the level of the process.
LogLevel GetLogLevel();

// Sets the format of the process. Until the first call, the variable
// NEREUS_LOG_FORMAT chooses it: kJson if the variable is "json", otherwise
// kText.
void SetLogFormat(LogFormat format);
// Returns the format of the process.
LogFormat GetLogFormat();

// Changes the facts about this process. `change` must not log.
void ChangeLogContext(absl::FunctionRef<void(LogContext&)> change);

// Returns a log line in `format`, with a line feed at its end.
std::string FormatLogLine(LogFormat format, const LogContext& context,
                          absl::Time time, LogLevel level,
                          const LogFields& fields, const std::string& text);

// Writes a log line, if `level` is not below the level of the process. For
// lines whose level is known only when the program runs: all others use
// NEREUS_LOG.
void WriteLog(LogLevel level, const LogFields& fields, const std::string& text);

// Function that receives each log line: its level and its text, without time,
// name and line feed. Any thread may call it. It must neither wait nor log.
using LogSink = void (*)(LogLevel level, const std::string& text);
// Hands later log lines to `sink` and not to standard error. With a null
// `sink`, they go to standard error again. The message of a failed NEREUS_CHECK
// always goes to standard error.
void SetLogSink(LogSink sink);

// Longest time for which the end of a process waits for the reader of its log.
inline constexpr absl::Duration kLogFlushLimit = absl::Seconds(1);

// Waits until all lines so far are written, for `limit` at most. Returns false
// if they are not. Call it before the process ends by _exit or _Exit; exit()
// and a failed NEREUS_CHECK call it with kLogFlushLimit.
bool FlushLog(absl::Duration limit);

// Returns the number of lines that were dropped, because the reader of standard
// error stood still or was too slow, or a write failed.
int64_t DroppedLogLines();

namespace internal {

// Collector of one log line. The destructor writes the line to standard error
// (LogWriter), and does not wait for a reader. Lines of several threads and
// processes do not mix. With a LogSink, the destructor calls the sink instead.
class LogLine {
 public:
  // Begins a line.
  explicit LogLine(LogLevel level, LogFields fields = {})
      : level_(level), fields_(std::move(fields)) {}
  // Writes the line, or hands it to the sink.
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  // Stream for the text.
  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;       // Level of the line.
  const LogFields fields_;     // Facts about the line.
  std::ostringstream stream_;  // Text so far.
};

// Collector of the message of a failed NEREUS_CHECK. The destructor writes the
// message and aborts the process.
class CheckFailure {
 public:
  // Begins the message with the place and the condition that failed.
  CheckFailure(const char* file, int line, const char* condition);
  // Writes the message and aborts.
  [[noreturn]] ~CheckFailure();
  // Stream for further text.
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;  // Text so far.
};

// Turns a stream into void, because both results of ?: in the macros below must
// have the same type. Its operator & binds weaker than << and stronger than ?:,
// so it applies to the whole text.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace nereus

// Logs a line, perhaps with LogFields:
//
//   NEREUS_LOG(Info) << "restoring " << chunks << " chunks";
//   NEREUS_LOG(Info, {LogEvent::kEpoch, first_step}) << "epoch " << epoch;
//
// If the line's level is below the level of the process, neither the fields nor
// the text are evaluated.
#define NEREUS_LOG(level, ...)                                           \
  (::nereus::LogLevel::k##level < ::nereus::GetLogLevel())               \
      ? (void)0                                                          \
      : ::nereus::internal::Voidify() &                                  \
            ::nereus::internal::LogLine(                                 \
                ::nereus::LogLevel::k##level __VA_OPT__(, ) __VA_ARGS__) \
                .stream()

// Aborts the process with a message if `condition` is false, in production too.
// Use it for invariants of this program. For wrong input from the network, from
// disk or from the user, return a Status instead: a hostile peer must not be
// able to end this process.
#define NEREUS_CHECK(condition)                                              \
  (condition)                                                                \
      ? (void)0                                                              \
      : ::nereus::internal::Voidify() &                                      \
            ::nereus::internal::CheckFailure(__FILE__, __LINE__, #condition) \
                .stream()
