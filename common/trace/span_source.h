#pragma once

#include "common/trace/span_recorder.h"

namespace nereus {

// Source of spans that does not record them at once, such as a GPU, which says
// later when it has worked.
class SpanSource {
 public:
  virtual ~SpanSource() = default;

  // Sets the keeper of the spans, before the process joins its job. The keeper
  // lives as long as the process is a member.
  virtual void SetRecorder(SpanRecorder* recorder) = 0;

  // Adds the spans of the trace under way to the keeper. Called on any thread,
  // just before the process sends all spans. Must not wait.
  virtual void AddSpans() = 0;
};

}  // namespace nereus
