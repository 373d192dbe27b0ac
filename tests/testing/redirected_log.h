#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/base/descriptor.h"
#include "common/base/logging.h"
#include "gtest/gtest.h"

namespace nereus {

// Upper bound of each wait. Only a log that waits makes a test wait so long.
inline constexpr absl::Duration kLogPatience = absl::Seconds(30);

// Two connected descriptors: bytes written to the second arrive at the first.
using Ends = std::array<Descriptor, 2>;

inline Ends MakePipe() {
  std::array<int, 2> ends = {-1, -1};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Standard error of this process, which the test reads when it wants to.
class RedirectedLog {
 public:
  explicit RedirectedLog(Ends ends)
      : before_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)),
        ends_(std::move(ends)) {
    dup2(ends_[1].get(), STDERR_FILENO);
  }
  ~RedirectedLog() {
    ReadAll();
    dup2(before_.get(), STDERR_FILENO);
  }
  RedirectedLog(const RedirectedLog&) = delete;
  RedirectedLog& operator=(const RedirectedLog&) = delete;

  int flags() const { return fcntl(ends_[1].get(), F_GETFL); }

  // Reads what has been written so far, and what waits.
  const std::string& ReadAll() {
    while (!FlushLog(absl::ZeroDuration()) || Read()) Read();
    return text_;
  }
  // Reads some of what has been written. Waits for it for `wait_ms` at most.
  // Returns false if there is nothing.
  bool Read(int wait_ms = 0) {
    pollfd watched = {ends_[0].get(), POLLIN, 0};
    if (poll(&watched, 1, wait_ms) != 1) return false;
    std::array<char, 4096> bytes = {};
    const ssize_t count = read(ends_[0].get(), bytes.data(), bytes.size());
    if (count > 0) text_.append(bytes.data(), static_cast<size_t>(count));
    return count > 0;
  }
  // Waits until `text` has been written, for kLogPatience at most.
  bool Await(const std::string& text) {
    while (!absl::StrContains(text_, text)) {
      if (!Read(static_cast<int>(absl::ToInt64Milliseconds(kLogPatience)))) {
        return false;
      }
    }
    return true;
  }
  const std::string& text() const { return text_; }
  // Returns how many times `text` has been written so far.
  int Count(const std::string& text) {
    ReadAll();
    int count = 0;
    for (size_t at = text_.find(text); at != std::string::npos;
         at = text_.find(text, at + 1)) {
      ++count;
    }
    return count;
  }

 private:
  const Descriptor before_;
  const Ends ends_;
  std::string text_;
};

}  // namespace nereus
