#include "server/admin/patient_output.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace nereus {
namespace {

// Time between two looks at the pending signals.
constexpr int kLookPeriodMs = 50;

bool EndSignalIsPending() {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  return sigismember(&pending, SIGINT) == 1 ||
         sigismember(&pending, SIGTERM) == 1 ||
         sigismember(&pending, SIGHUP) == 1;
}

// Waits until a write of PIPE_BUF bytes would not block. Returns false if a
// signal is pending before that.
bool AwaitReader(int descriptor) {
  while (true) {
    pollfd polled = {descriptor, POLLOUT, 0};
    const int ready = poll(&polled, 1, kLookPeriodMs);
    if (ready > 0) return true;  // The write tells an error, if there is one.
    if (ready < 0 && errno != EINTR) return false;
    if (EndSignalIsPending()) return false;
  }
}

}  // namespace

std::streambuf::int_type PatientOutput::overflow(int_type byte) {
  if (traits_type::eq_int_type(byte, traits_type::eof())) {
    return traits_type::not_eof(byte);
  }
  const char written = traits_type::to_char_type(byte);
  return xsputn(&written, 1) == 1 ? byte : traits_type::eof();
}

std::streamsize PatientOutput::xsputn(const char* bytes,
                                      std::streamsize count) {
  std::streamsize written = 0;
  while (written < count && AwaitReader(descriptor_)) {
    const ssize_t step =
        write(descriptor_, bytes + written,
              std::min<std::streamsize>(count - written, PIPE_BUF));
    if (step < 0 && errno != EINTR && errno != EAGAIN) break;
    written += std::max<ssize_t>(step, 0);
  }
  return written;
}

}  // namespace nereus
