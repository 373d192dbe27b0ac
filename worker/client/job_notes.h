#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/log_repeats.h"
#include "common/base/mutex.h"
#include "common/protocol/job_options.h"
#include "worker/public/client_options.h"

namespace nereus {

// Logs the options of the job that a worker has joined. Warns if the caller
// runs the optimizer, an optimizer with these options has state, and the caller
// has bound no state (LayerBinding::state), unless `client` says that the
// optimizer keeps none. A worker that joins later would then begin with other
// state. `lacks_state`: true if the caller has bound no state.
void LogJoined(const ClientOptions& client, const JobOptions& job,
               bool lacks_state);

// Log lines about steps that all workers skip, because a gradient of this
// worker is not finite. A gradient can be so in every step, so the lines of a
// layer become rare (LogRepeats). Thread-safe.
class SkipNotes {
 public:
  // Logs that the step is skipped because of `layer`, if a line is due.
  // `reason`: the place and the value.
  void Log(int64_t step, const std::string& layer, const std::string& reason)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  LogRepeats repeats_ ABSL_GUARDED_BY(mu_);  // Lines of each layer.
};

}  // namespace nereus
