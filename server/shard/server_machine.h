#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "common/protocol/probe_answers.h"
#include "server/shard/shard.h"
#include "server/shard/votes.h"

namespace nereus {

// Machine of one server. It holds the shards of which this server is the
// primary or the backup in the current epoch, counts the votes of workers, and
// answers the probes by which workers measure their links.
//
// Frames go to the shard that has their chunk (Shard). Memory: that of the
// shards, and a counter for each worker.
class ServerMachine final : public Machine {
 public:
  // `server`: rank of this server.
  ServerMachine(JobPtr job, int server);

  // Loads the values of the base round if the job goes on from a checkpoint,
  // and begins the epoch. The caller calls this once, before all other methods.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  void Freeze() override;
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;
  std::optional<ReplicaChecksums> OnChecksum(const ChecksumValues& checked,
                                             uint32_t crc) override;

  // Bytes of parameters and optimizer state, as primary and as backup.
  int64_t stored_bytes() const { return SumOf(&Shard::stored_bytes); }
  // Number of chunks, as primary and as backup.
  int64_t chunk_count() const { return SumOf(&Shard::chunk_count); }
  // Bytes of stored_bytes(), of open rounds and of checkpoints under way.
  int64_t held_bytes() const { return SumOf(&Shard::held_bytes); }

  // Oldest open round of the shards of which this server is the primary.
  std::optional<Shard::OpenRound> oldest_open_round() const;

  // Indexes of the shards of which this server is the primary, and which have a
  // current backup.
  std::vector<int32_t> current_backups() const;

  // Returns a shard, or null if this server does not hold it. Valid until the
  // next epoch.
  const Shard* shard(int index) const;

 private:
  int64_t SumOf(int64_t (Shard::*count)() const) const;
  // True if this server is the primary or the backup of `shard` in this epoch.
  bool Holds(int shard) const;
  // True if all shards of which this server is the primary are ready to switch.
  bool ready_to_switch() const;
  // Tells the coordinator, once in an epoch, if this server is ready to switch.
  void SayReadyToSwitch(Outbox& out);
  // Notes of which shards the backups are to become current in this epoch.
  void ExpectBackups();
  // Handles the news that a backup has a chunk of `shard`. When all expected
  // backups are current, sends a heartbeat: without the news, the coordinator
  // would take the shards for lost if this server died now.
  void NoteBackup(int shard, Outbox& out);
  void OnVote(PeerId from, const FrameHeader& header, Outbox& out);

  const int server_;  // Rank of this server.
  JobPtr job_;
  bool is_ready_sent_ = false;  // True once ReadyToSwitch was sent.
  ProbeAnswers probes_;         // Answers to probes of workers.
  // Shards that this server serves, and whose backups were not current when the
  // epoch began and are not current yet.
  std::set<int> behind_;
  Votes votes_;
  std::map<int, Shard> shards_;  // Shards that this server holds, by index.
};

}  // namespace nereus
