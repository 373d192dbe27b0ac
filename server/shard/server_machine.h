#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/job.h"
#include "common/protocol/machine.h"
#include "server/shard/shard.h"
#include "server/shard/votes.h"

namespace nereus {

// The machine of one server: the shards that it serves, and its copies of
// others, as each epoch has them.
class ServerMachine final : public Machine {
 public:
  // `server`: its rank.
  ServerMachine(JobPtr job, int server);

  // Once, at first: as of Shard.
  void Start(Outbox& out);

  absl::StatusOr<Landing> OnHeader(PeerId from,
                                   const FrameHeader& header) const override;
  void OnFrame(PeerId from, const Frame& frame, Outbox& out) override;
  void Freeze() override;
  MachineReport Report() const override;
  void OnEpoch(JobPtr job, Outbox& out) override;
  void SaveLast(int64_t round, int32_t sender, Outbox& out) override;

  // Parameters and optimizer state held, copies included, in bytes.
  int64_t stored_bytes() const;
  int64_t chunk_count() const;
  // The same with all that is under way.
  int64_t held_bytes() const;

  // The oldest one of the shards that it serves.
  std::optional<Shard::OpenRound> oldest_open_round() const;

  // The shards that it serves whose copies are whole.
  std::vector<int32_t> current_backups() const;

  // One that it holds; null if it does not. Valid until the next epoch.
  const Shard* shard(int index) const;

 private:
  bool Holds(int shard) const;
  // Whether all shards that it serves are; says so, once.
  bool drained() const;
  void SaySettled(Outbox& out);
  absl::StatusOr<Landing> OnProbeHeader(PeerId from,
                                        const FrameHeader& header) const;
  void OnProbe(PeerId from, const FrameHeader& header, Outbox& out);
  void OnVote(PeerId from, const FrameHeader& header, Outbox& out);

  const int server_;  // Its rank.
  JobPtr job_;
  bool drained_said_ = false;      // In this epoch.
  std::map<int, int64_t> probes_;  // By worker: answered in this epoch.
  Votes votes_;
  std::map<int, Shard> shards_;  // By index: those that it holds.
};

}  // namespace nereus
