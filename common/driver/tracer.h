#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/protocol/membership.h"
#include "common/trace/span_recorder.h"
#include "common/trace/span_source.h"

namespace nereus {

// Side of a member in a trace. Obeys the coordinator: compares the clocks,
// records spans, and sends them in the end.
//
//   TraceOrder --> records, asks for the coordinator's time 8 times; another
//     order of the same trace only changes the steps
//   TraceEnd   --> asks 8 times again --> sends all spans
//
// The quickest answer of each 8 counts (ClockSample). The second comparison
// shows how far the clocks have drifted apart. The trace ends, and its spans
// are dropped, if TraceEnd says so, and when the member opens another session:
// the coordinator then no longer asks it.
//
// Thread-safe.
class Tracer {
 public:
  // `send` sends a message to the coordinator. It is called without a lock.
  explicit Tracer(std::function<void(const MemberMessage&)> send)
      : send_(std::move(send)) {}

  // Handles a message of the coordinator. Returns false, and does nothing, if
  // the message is not about a trace.
  bool OnMessage(const CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the trace, if one is under way, and drops its spans.
  void Drop() ABSL_LOCKS_EXCLUDED(mu_);

  SpanRecorder& recorder() { return recorder_; }

  // Sets the source of spans that are not recorded at once, before the first
  // order. It is not owned, and
  // must outlive this.
  void SetSource(SpanSource* source);

 private:
  void OnOrder(const TraceOrder& order) ABSL_LOCKS_EXCLUDED(mu_);
  void OnAnswer(const ClockAnswer& answer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEnd(const TraceEnd& end) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks for the coordinator's time.
  void Ask(uint64_t trace);
  // Sends all spans, and the comparisons `clock`.
  void SendSpans(uint64_t trace, const std::vector<ClockSample>& clock);

  const std::function<void(const MemberMessage&)> send_;
  SpanSource* source_ = nullptr;  // See SetSource.
  SpanRecorder recorder_;
  Mutex mu_;
  uint64_t trace_ ABSL_GUARDED_BY(mu_) = 0;  // TraceOrder::trace.
  // Number of questions of this comparison that have no answer yet.
  int questions_left_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;  // True after TraceEnd.
  // Best comparison at the begin of the trace, and at its end.
  std::optional<ClockSample> best_[2] ABSL_GUARDED_BY(mu_);
};

}  // namespace nereus
