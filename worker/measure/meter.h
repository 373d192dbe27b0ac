#pragma once

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/time_histogram.h"
#include "common/protocol/membership.h"
#include "common/trace/span_recorder.h"
#include "worker/measure/link_probe.h"
#include "worker/measure/step_times.h"
#include "worker/public/client.h"

namespace nereus {

// Measures one worker. For the planner: how long it computes for each layer,
// and how fast the link or the memory of its host is, whichever the ProbePlan
// says. For operators: how the worker spends its time. Reads the clock for
// StepTimes, StepPhases and LinkProbe, and locks them. Thread-safe.
class Meter {
 public:
  explicit Meter(absl::Span<const LayerSpec> layers);

  // Sets the recorder that gets the caller's spans while the job is traced. It
  // is not owned, and must outlive this.
  void set_recorder(SpanRecorder* recorder) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    phases_.set_recorder(recorder);
  }

  // Handle events of the caller (StepTimes, StepPhases). `from`: time at which
  // the caller's call began.
  void OnBegin(int64_t step, absl::Time from) ABSL_LOCKS_EXCLUDED(mu_);
  void OnPush(int layer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWait(int layer, absl::Time from) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles a wait for the turn at a shared device.
  void OnTurn(absl::Time from) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles a call that has waited for something else than a layer or a step.
  void OnOtherWait(absl::Time from) ABSL_LOCKS_EXCLUDED(mu_);

  // Notes what to measure by probes from now on. Drops earlier samples if the
  // plan measures something else than before, or probes another member.
  void OnEpoch(const ProbePlan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the train of probes to send now, if one is due. Call it at a moment
  // without traffic.
  std::optional<LinkProbe::Train> NextTrain() ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the answer to a train.
  void OnAnswer(int64_t train) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the measurements if they are due. The first ones are due when
  // StepTimes has a result and, if this worker probes the link, LinkProbe has
  // one, too. Later ones are due every 5 s.
  std::optional<Measurements> TakeDue() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the time of the caller's steps by phases.
  Activity phases() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the times of the caller's whole steps.
  TimeHistogram step_times() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the last measurements that TakeDue has returned, if any.
  std::optional<Measurements> last() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  StepTimes steps_ ABSL_GUARDED_BY(mu_);  // Compute times of layers.
  StepPhases phases_ ABSL_GUARDED_BY(mu_);
  ProbePlan plan_ ABSL_GUARDED_BY(mu_);   // Task of the probes.
  LinkProbe probe_ ABSL_GUARDED_BY(mu_);  // Trains and samples for plan_.
  std::optional<Measurements> last_ ABSL_GUARDED_BY(mu_);  // See last().
  // Time when last_ was measured.
  absl::Time reported_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// Returns the bytes per second that all workers of a host together hand each
// other through memory. `one_transfer`: those from one worker to another one,
// which copies them. Each transfer keeps two of the machine's `cores` busy, so
// up to cores / 2 workers send at full speed at the same time. Neglects that
// the memory may be slower than all of them together, and that a container may
// have fewer processors.
double MemoryRateOf(double one_transfer, int local_workers, int cores);

}  // namespace nereus
