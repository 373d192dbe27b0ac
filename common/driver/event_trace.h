#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/outbox.h"
#include "common/protocol/span.h"
#include "common/trace/span_recorder.h"

namespace nereus {

// Spans of a driver: of the frame or event that it handles now, and of the
// actions that follow from it. Reads the clock only while a trace is under way.
// Used by the driving thread only.
class EventTrace {
 public:
  // `recorder` is not owned, must outlive this, and may be null: then nothing
  // is recorded.
  explicit EventTrace(SpanRecorder* recorder) : recorder_(recorder) {}

  // Begins a frame or event.
  void Begin();

  // BeginAction returns the time. EndAction adds the span of an action that
  // does arithmetic, or tells the caller that a layer is done.
  absl::Time BeginAction() const;
  void EndAction(const Action& action, absl::Time begin);
  // Adds the span since `begin`, in which a frame was encoded and handed to the
  // transport. A probe has no span.
  void EndSend(PeerId self, PeerId to, const FrameHeader& header,
               absl::Time begin);

  // End a frame or an event. Keep the spans of a frame of a traced step, and of
  // an event that led to something in a traced step.
  void EndFrame(PeerId self, PeerId from, const FrameHeader& header);
  void EndEvent();

 private:
  // Keeps `outer` and the spans within it, which get its layer, chunk and round
  // if they have none.
  void Keep(const Span& outer);

  SpanRecorder* const recorder_;
  bool on_ = false;   // True if the frame or event may be of a traced step.
  absl::Time begin_;  // Begin of the frame or event.
  std::vector<Span> spans_;  // Spans of the actions so far.
};

}  // namespace nereus
