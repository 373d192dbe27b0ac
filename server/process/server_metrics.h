#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/time_histogram.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/transport/transport.h"
#include "server/process/contribution_times.h"
#include "server/shard/server_machine.h"

namespace nereus {

// Metrics of a server for its page: what it stores, how many rounds it has
// closed, how far apart the workers' contributions are, and how long it writes
// checkpoints. Thread-safe.
class ServerMetrics {
 public:
  // Notes the state of the machine. Called before each heartbeat.
  void OnStock(const ServerMachine& machine, const Job& job)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Notes a frame that the machine accepts.
  void OnFrame(const FrameHeader& header) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that the process has made a new machine.
  void OnNewMachine() ABSL_LOCKS_EXCLUDED(mu_);
  // Notes that a shard's part of a checkpoint was written, or could not be.
  void OnWritten(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the metrics. `heartbeat`: the one that is about to be sent.
  MetricList Make(const Heartbeat& heartbeat,
                  const ConnectionCounts& connections) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  // Bytes of the shards of which the server is the primary, or the backup.
  int64_t primary_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t backup_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Bytes of open rounds and of checkpoints under way.
  int64_t open_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Last round that is closed for all chunks of all shards, and the number of
  // such rounds.
  int64_t closed_round_ ABSL_GUARDED_BY(mu_) = kInitialRound;
  int64_t rounds_ ABSL_GUARDED_BY(mu_) = 0;
  ContributionTimes contributions_ ABSL_GUARDED_BY(mu_);
  TimeHistogram writes_ ABSL_GUARDED_BY(mu_);  // Times of OnWritten.
};

}  // namespace nereus
