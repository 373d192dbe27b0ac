#pragma once

#include "common/trace/span_recorder.h"

namespace nereus {

// Source of spans whose times are known only later, such as a GPU.
class SpanSource {
 public:
  virtual ~SpanSource() = default;

  // Sets the recorder, before the process joins its job. The recorder lives as
  // long as the process is a member.
  virtual void SetRecorder(SpanRecorder* recorder) = 0;

  // Adds the spans of the trace under way to the recorder, and forgets them.
  // Called on any thread, just before the process sends or drops all spans.
  // Must not wait for the source's work.
  virtual void AddSpans() = 0;
};

}  // namespace nereus
