#pragma once

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/time_histogram.h"
#include "common/metrics/metric_list.h"
#include "common/protocol/frame.h"
#include "common/protocol/job.h"
#include "common/protocol/membership.h"
#include "common/transport/transport.h"
#include "server/shard/server_machine.h"

namespace nereus {

// Measures, for each round of a chunk, the time from the first frame of a
// contribution to the last: how far apart the workers are. A round counts when
// the first frame of a later round comes. Frames that come after that do not
// count, such as those of a worker that a quorum did not wait for. Not
// thread-safe.
class ContributionTimes {
 public:
  // Handles a frame that the machine accepts. Ignores all kinds but
  // kContribution.
  void OnFrame(const FrameHeader& header, absl::Time now);

  // Forgets the rounds that have not counted: the job goes back to a checkpoint
  // or the server has a new machine.
  void Restart() { open_.clear(); }

  // Times of the rounds that have counted.
  const TimeHistogram& times() const { return times_; }

 private:
  // Round of a chunk that has not counted yet.
  struct Open {
    int64_t round = 0;
    absl::Time first;  // Times of its first and last frame so far.
    absl::Time last;
  };

  // Rounds that have not counted, by layer and chunk.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Open> open_;
  TimeHistogram times_;
};

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
