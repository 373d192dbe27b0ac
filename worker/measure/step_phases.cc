#include "worker/measure/step_phases.h"

namespace nereus {

// Calls of several threads may overlap: then `now` can be before mark_.
void StepPhases::Add(absl::Time now, absl::Duration& phase) {
  if (!mark_.has_value() || now <= *mark_) return;
  phase += now - *mark_;
  mark_ = now;
}

void StepPhases::OnBegin(absl::Time from, absl::Time to) {
  OnWait(from, to);
  if (!mark_.has_value()) mark_ = to;
  has_pushed_ = false;
  ++sums_.steps;
}

void StepPhases::OnWait(absl::Time from, absl::Time to) {
  Add(from, has_pushed_ ? sums_.times.other : sums_.times.forward);
  Add(to, sums_.times.waiting);
}

void StepPhases::OnPush(absl::Time now) {
  Add(now, has_pushed_ ? sums_.times.backward : sums_.times.forward);
  has_pushed_ = true;
}

}  // namespace nereus
