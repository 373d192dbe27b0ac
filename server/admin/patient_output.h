#pragma once

#include <streambuf>

namespace nereus {

// Buffer of a stream whose reader may stand still, such as standard output into
// `less`. A plain write would block until the reader goes on, and a caller that
// has blocked SIGINT, SIGTERM and SIGHUP (ProcessGroup) would notice none of
// them. A write to this buffer waits for the reader, but fails when one of
// these signals is pending and the reader stands still. After that, the stream
// is bad and drops all further output. The signal stays pending.
// Thread-compatible.
class PatientOutput final : public std::streambuf {
 public:
  // `descriptor` isn't owned and must outlive this.
  explicit PatientOutput(int descriptor) : descriptor_(descriptor) {}

 private:
  // Methods of std::streambuf. They write to `descriptor_` at once.
  int_type overflow(int_type byte) override;
  std::streamsize xsputn(const char* bytes, std::streamsize count) override;

  const int descriptor_;
};

}  // namespace nereus
