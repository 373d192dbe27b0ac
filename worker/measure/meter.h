#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/protocol/membership.h"
#include "worker/measure/link_probe.h"
#include "worker/measure/step_times.h"
#include "worker/public/client.h"

namespace nereus {

// What one worker measures for the planner: what its caller's layers compute,
// and what its link to a server is like. Tells StepTimes and LinkProbe the
// time. Thread-safe.
class Meter {
 public:
  explicit Meter(absl::Span<const LayerSpec> layers);

  // What the caller does; see StepTimes.
  void OnBegin() ABSL_LOCKS_EXCLUDED(mu_);
  void OnPush(int layer) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWait(int layer, absl::Time from) ABSL_LOCKS_EXCLUDED(mu_);

  // Nothing is under way: the train of probes that is to be sent now, if any.
  std::optional<LinkProbe::Train> NextTrain() ABSL_LOCKS_EXCLUDED(mu_);
  void OnAnswer(int64_t train) ABSL_LOCKS_EXCLUDED(mu_);

  // What all has come to, once there is enough, and every few seconds again.
  std::optional<Measurements> TakeDue() ABSL_LOCKS_EXCLUDED(mu_);
  // What TakeDue said last.
  std::optional<Measurements> last() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  StepTimes steps_ ABSL_GUARDED_BY(mu_);
  LinkProbe link_ ABSL_GUARDED_BY(mu_);
  std::optional<Measurements> last_ ABSL_GUARDED_BY(mu_);
  absl::Time said_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

// The shards' ranks that a worker whose data address is `own` probes: those on
// other hosts, if there are.
std::vector<int32_t> ShardsToProbe(const EpochStart& start,
                                   const std::string& own);

}  // namespace nereus
