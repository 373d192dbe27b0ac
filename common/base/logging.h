#pragma once

#include <sstream>
#include <string>

namespace nereus {

// Importance of a log line, ascending: kDebug for details, kInfo for decisions
// and changes of state, kWarning for what an operator should look at, kError
// for what has failed.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the level below which lines are dropped; kInfo at first. Any thread.
void SetLogLevel(LogLevel level);
// Returns that level.
LogLevel GetLogLevel();

// Sets the name of this process in its log lines: "shard 0", "worker 2". Any
// thread.
void SetLogName(const std::string& name);

// Receives the text of each log line, without a line feed. Called on any
// thread; it must neither wait nor log.
using LogSink = void (*)(LogLevel level, const std::string& text);
// Hands log lines to `sink` instead of standard error; null: standard error
// again. A failed NEREUS_CHECK still goes to standard error. Any thread.
void SetLogSink(LogSink sink);

namespace internal {

// Collector of one log line. It writes the line with one write() when it is
// destroyed, so that lines of several threads and processes do not mix.
class LogLine {
 public:
  // Begins a line.
  explicit LogLine(LogLevel level) : level_(level) {}
  // Writes the line.
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  // Stream for the text.
  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;       // Level of the line.
  std::ostringstream stream_;  // Text so far.
};

// Collector of the message of a failed NEREUS_CHECK. It writes the line and
// aborts the process when it is destroyed.
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

// Turns a stream expression into void. The operator binds weaker than << and
// stronger than ?:.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace nereus

// Logs a line: NEREUS_LOG(Info) << "shard loads=" << loads; The text is not
// evaluated below the level.
#define NEREUS_LOG(level)                                  \
  (::nereus::LogLevel::k##level < ::nereus::GetLogLevel()) \
      ? (void)0                                            \
      : ::nereus::internal::Voidify() &                    \
            ::nereus::internal::LogLine(::nereus::LogLevel::k##level).stream()

// Aborts with a message if an invariant of ours is broken, in production too.
// Wrong input from the network, from disk or from the user is a Status instead:
// a hostile peer must not be able to end this process.
#define NEREUS_CHECK(condition)                                              \
  (condition)                                                                \
      ? (void)0                                                              \
      : ::nereus::internal::Voidify() &                                      \
            ::nereus::internal::CheckFailure(__FILE__, __LINE__, #condition) \
                .stream()
