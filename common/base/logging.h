#pragma once

#include <sstream>
#include <string>

namespace nereus {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. Starts at kInfo. Thread-safe.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Who speaks, put into each line: "shard 0", "worker 2". Thread-safe.
void SetLogName(const std::string& name);

namespace internal {

// Collects one line, and writes it to standard error with one write() when it
// is destroyed, so that lines of several threads and processes do not mix.
class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;
  std::ostringstream stream_;
};

// Writes the line and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Makes a stream expression void; binds weaker than << and stronger than ?:.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace nereus

// NEREUS_LOG(Info) << "shard loads=" << loads;
#define NEREUS_LOG(level)                                  \
  (::nereus::LogLevel::k##level < ::nereus::GetLogLevel()) \
      ? (void)0                                            \
      : ::nereus::internal::Voidify() &                    \
            ::nereus::internal::LogLine(::nereus::LogLevel::k##level).stream()

// An invariant of ours, checked in production too. What comes from the network,
// from disk or from the user is a Status instead.
#define NEREUS_CHECK(condition)                                              \
  (condition)                                                                \
      ? (void)0                                                              \
      : ::nereus::internal::Voidify() &                                      \
            ::nereus::internal::CheckFailure(__FILE__, __LINE__, #condition) \
                .stream()
