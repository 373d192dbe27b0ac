#include "server/process/server_metrics.h"

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/metrics/traffic_metrics.h"

namespace nereus {

// Rounds that the job does again, because it went back to a checkpoint, count
// again. Leaves out rounds closed by the shard's previous server, and rounds of
// layers without servers.
void ServerMetrics::OnStock(const ServerMachine& machine, const Job& job) {
  int64_t primary = 0;
  int64_t backup = 0;
  std::optional<int64_t> closed;
  for (int index = 0; index < job.shards(); ++index) {
    const Shard* const shard = machine.shard(index);
    if (shard == nullptr) continue;
    (shard->serves() ? primary : backup) += shard->stored_bytes();
    const std::optional<int64_t> round = shard->closed_round();
    if (shard->serves() && round.has_value()) {
      closed = std::min(*round, closed.value_or(*round));
    }
  }
  MutexLock lock(&mu_);
  primary_bytes_ = primary;
  backup_bytes_ = backup;
  open_bytes_ = machine.held_bytes() - primary - backup;
  if (closed.has_value() && closed_round_ > kInitialRound) {
    rounds_ += std::max<int64_t>(0, *closed - closed_round_);
  }
  closed_round_ = closed.value_or(kInitialRound);
}

void ServerMetrics::OnFrame(const FrameHeader& header) {
  const absl::Time now = SteadyNow();
  MutexLock lock(&mu_);
  contributions_.OnFrame(header, now);
}

void ServerMetrics::OnNewMachine() {
  MutexLock lock(&mu_);
  contributions_.Restart();
}

void ServerMetrics::OnWritten(absl::Duration time) {
  MutexLock lock(&mu_);
  writes_.Add(time);
}

MetricList ServerMetrics::Make(const Heartbeat& heartbeat,
                               const ConnectionCounts& connections) const {
  MetricList metrics;
  {
    MutexLock lock(&mu_);
    const auto add_bytes = [&](const std::string& kind, int64_t bytes) {
      metrics.AddGauge("nereus_shard_bytes",
                       "Bytes stored as primary and as backup, and bytes of "
                       "open rounds and of checkpoints under way "
                       "(open_rounds); memory that two share counts twice",
                       static_cast<double>(bytes), {{"kind", kind}});
    };
    add_bytes("primary", primary_bytes_);
    add_bytes("backup", backup_bytes_);
    add_bytes("open_rounds", open_bytes_);
    metrics.AddCounter("nereus_shard_rounds_total",
                       "Rounds that are closed for all chunks that the server "
                       "serves; none while no layer uses the servers",
                       static_cast<double>(rounds_));
    metrics.AddHistogram("nereus_shard_round_seconds",
                         "Times from the first frame of a round's "
                         "contributions to the last, by chunk and round",
                         contributions_.times());
    metrics.AddHistogram("nereus_checkpoint_write_seconds",
                         "Times to write a shard's part of a checkpoint, or "
                         "to fail to",
                         writes_);
  }
  metrics.AddGauge("nereus_shard_chunks", "Chunks that this server serves",
                   static_cast<double>(heartbeat.chunks));
  AddTrafficMetrics(heartbeat.activity, connections, metrics);
  return metrics;
}

void ContributionTimes::OnFrame(const FrameHeader& header, absl::Time now) {
  if (header.kind != FrameKind::kContribution) return;
  const auto [entry, is_new] = open_.try_emplace({header.layer, header.chunk},
                                                 Open{header.round, now, now});
  if (is_new) return;
  Open& open = entry->second;
  if (header.round < open.round) return;
  if (header.round > open.round) {
    times_.Add(open.last - open.first);
    open = {header.round, now, now};
  }
  open.last = now;
}

}  // namespace nereus
