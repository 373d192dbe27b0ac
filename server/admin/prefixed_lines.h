#pragma once

#include <ostream>

#include "absl/strings/string_view.h"
#include "common/base/logging.h"

namespace nereus {

// Lines of several workers on one stream, each with its worker: "[worker-0]
// step 3". Each line is written whole and at once, so lines do not mix.
// Thread-compatible.
class PrefixedLines {
 public:
  // `out` isn't owned and must outlive this. On a terminal, each worker has a
  // colour. With LogFormat::kJson, lines that are JSON objects stay as they
  // are.
  PrefixedLines(std::ostream* out, bool is_terminal,
                LogFormat format = LogFormat::kText)
      : out_(out), is_terminal_(is_terminal), format_(format) {}

  // Writes a line of `worker`. A progress bar uses carriage returns to draw its
  // line again and again in one place; of such a line, writes only the last
  // drawing that is not blank.
  void Write(int worker, absl::string_view line);

  // True if all lines could be written.
  bool ok() const { return out_->good(); }

 private:
  std::ostream* const out_;
  const bool is_terminal_;
  const LogFormat format_;
};

}  // namespace nereus
