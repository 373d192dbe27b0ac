#pragma once

#include <sstream>
#include <string>

namespace nereus {

// Importance of a log line, ascending. kDebug: details. kInfo: decisions and
// changes of state. kWarning: an operator should look at it. kError: something
// has failed.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the level of the process: lines below it are dropped. The level is kInfo
// until the first call. Any thread may call the functions of this file.
void SetLogLevel(LogLevel level);
// Returns the level of the process.
LogLevel GetLogLevel();

// Sets the name of this process in its log lines: "shard 0", "worker 2".
void SetLogName(const std::string& name);

// Function that receives each log line: its level and its text, without time,
// name and line feed. Any thread may call it. It must neither wait nor log.
using LogSink = void (*)(LogLevel level, const std::string& text);
// Hands later log lines to `sink` and not to standard error. With a null
// `sink`, they go to standard error again. The message of a failed NEREUS_CHECK
// always goes to standard error.
void SetLogSink(LogSink sink);

namespace internal {

// Collector of one log line. The destructor writes the line with one write(),
// so that lines of several threads and processes do not mix. With a LogSink,
// the destructor calls the sink instead.
class LogLine {
 public:
  // Begins a line.
  explicit LogLine(LogLevel level) : level_(level) {}
  // Writes the line, or hands it to the sink.
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  // Stream for the text.
  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;       // Level of the line.
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

// Logs a line: NEREUS_LOG(Info) << "shard loads=" << loads; If the line's level
// is below the level of the process, the text is not evaluated.
#define NEREUS_LOG(level)                                  \
  (::nereus::LogLevel::k##level < ::nereus::GetLogLevel()) \
      ? (void)0                                            \
      : ::nereus::internal::Voidify() &                    \
            ::nereus::internal::LogLine(::nereus::LogLevel::k##level).stream()

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
