// Read in this order: frames are routed to a shard, or are votes and probes
// (OnHeader, OnFrame), the last vote on a step makes the verdict (OnVote),
// epochs follow (Freeze, Report, OnEpoch), and sums over the shards are
// reported. Shard has the rounds.
//
//   running --all rounds up to the switch round are done--> ready to switch
//   running, ready to switch --Freeze--> frozen --OnEpoch--> running

#include "server/shard/server_machine.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {

ServerMachine::ServerMachine(JobPtr job, int server)
    : server_(server), job_(std::move(job)), votes_(job_, server) {
  for (int index = 0; index < job_->shards(); ++index) {
    if (!Holds(index)) continue;
    shards_.try_emplace(index, job_, index, PeerId::Shard(server_));
  }
  ExpectBackups();
}

bool ServerMachine::Holds(int shard) const {
  const ShardServers& servers = job_->shard_servers[shard];
  return servers.primary == server_ || servers.backup == server_;
}

void ServerMachine::Start(Outbox& out) {
  for (auto& [index, shard] : shards_) shard.Start(out);
  SayReadyToSwitch(out);
}

bool ServerMachine::ready_to_switch() const {
  return job_->switches() && absl::c_all_of(shards_, [](const auto& held) {
           return !held.second.serves() || held.second.ready_to_switch();
         });
}

void ServerMachine::SayReadyToSwitch(Outbox& out) {
  if (is_ready_sent_ || !ready_to_switch()) return;
  is_ready_sent_ = true;
  out.Add(SendMessage{ReadyToSwitch{job_->epoch}});
}

absl::StatusOr<Landing> ServerMachine::OnHeader(
    PeerId from, const FrameHeader& header) const {
  NEREUS_TRY(CheckFrame(*job_, from, header));
  if (header.kind == FrameKind::kVote) return votes_.OnHeader(from, header);
  if (header.kind == FrameKind::kProbe) {
    return probes_.OnHeader(*job_, PeerId::Shard(server_), from, header);
  }
  const Chunk chunk = NEREUS_TRY(FindChunk(*job_, header));
  const auto held = shards_.find(chunk.shard);
  if (held != shards_.end()) return held->second.OnHeader(from, header, chunk);
  return RefuseFrame(header, "the chunk is ", PeerName(job_->ServerOf(chunk)),
                     "'s, this is ", PeerName(PeerId::Shard(server_)));
}

// The verdict on a step lets rounds of all shards close.
void ServerMachine::OnVote(PeerId from, const FrameHeader& header,
                           Outbox& out) {
  const std::optional<StepVerdict> verdict = votes_.OnFrame(from, header);
  if (!verdict.has_value()) return;
  for (auto& [index, shard] : shards_) shard.OnVerdict(*verdict, out);
  // All servers reach the same verdict. One of them tells the workers: the
  // primary of shard 0.
  if (job_->shard_servers.front().primary != server_) return;
  FrameHeader word =
      MakeHeader(*job_, PeerId::Shard(server_), FrameKind::kVerdict,
                 /*layer=*/0, /*chunk=*/0, verdict->step);
  word.part = verdict->skipped ? kSkipped : kGood;
  out.Add(BroadcastFrame{RanksOf(job_->workers), {word, {}}});
}

void ServerMachine::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  if (frame.header.kind == FrameKind::kVote) {
    OnVote(from, frame.header, out);
  } else if (frame.header.kind == FrameKind::kProbe) {
    probes_.OnFrame(*job_, PeerId::Shard(server_), from, frame.header, out);
  } else {
    const auto chunk = FindChunk(*job_, frame.header);
    NEREUS_CHECK(chunk.ok()) << chunk.status();
    shards_.at(chunk->shard).OnFrame(from, frame, *chunk, out);
    if (frame.header.kind == FrameKind::kHave) {
      NoteBackup(chunk->shard, out);
    }
  }
  SayReadyToSwitch(out);
}

void ServerMachine::ExpectBackups() {
  behind_.clear();
  for (const auto& [index, shard] : shards_) {
    const ShardServers& servers = job_->shard_servers[index];
    if (shard.serves() && servers.backup >= 0 && !servers.backup_is_current) {
      behind_.insert(index);
    }
  }
}

void ServerMachine::NoteBackup(int shard, Outbox& out) {
  if (!behind_.contains(shard) || !shards_.at(shard).has_current_backup()) {
    return;
  }
  behind_.erase(shard);
  if (behind_.empty()) out.Add(SendHeartbeat{});
}

void ServerMachine::Freeze() {
  votes_.Freeze();
  for (auto& [index, shard] : shards_) shard.Freeze();
}

MachineReport ServerMachine::Report() const {
  MachineReport report;
  report.verdicts = votes_.verdicts().all();
  report.ready_to_switch = ready_to_switch();
  for (const auto& [index, shard] : shards_) {
    report.closed_rounds.merge(shard.Report().closed_rounds);
  }
  return report;
}

// Drops shards of which this server is no longer the primary or the backup.
// Makes and starts shards that are new here.
void ServerMachine::OnEpoch(JobPtr job, Outbox& out) {
  job_ = std::move(job);
  is_ready_sent_ = false;
  probes_.OnEpoch();
  votes_.OnEpoch(job_);
  for (int index = 0; index < job_->shards(); ++index) {
    if (!Holds(index)) {
      shards_.erase(index);
      continue;
    }
    const auto [held, is_new] =
        shards_.try_emplace(index, job_, index, PeerId::Shard(server_));
    if (is_new) {
      held->second.Start(out);
    } else {
      held->second.OnEpoch(job_, out);
    }
  }
  ExpectBackups();
  SayReadyToSwitch(out);
}

void ServerMachine::SaveLast(int64_t round, int32_t sender, Outbox& out) {
  for (auto& [index, shard] : shards_) shard.SaveLast(round, sender, out);
}

// A shard that this server no longer holds has no use for its checksums.
std::optional<ReplicaChecksums> ServerMachine::OnChecksum(
    const ChecksumValues& checked, uint32_t crc) {
  const auto chunks = job_->placement.layer_chunks(checked.layer);
  const auto held = shards_.find(chunks[checked.chunk].shard);
  if (held == shards_.end()) return std::nullopt;
  return held->second.OnChecksum(checked, crc);
}

int64_t ServerMachine::SumOf(int64_t (Shard::*count)() const) const {
  int64_t sum = 0;
  for (const auto& [index, shard] : shards_) sum += (shard.*count)();
  return sum;
}

std::optional<Shard::OpenRound> ServerMachine::oldest_open_round() const {
  std::optional<Shard::OpenRound> oldest;
  for (const auto& [index, shard] : shards_) {
    if (!shard.serves()) continue;
    std::optional<Shard::OpenRound> open = shard.oldest_open_round();
    if (!open.has_value()) continue;
    if (!oldest.has_value() || open->round < oldest->round) oldest = open;
  }
  // A round that has all contributions, and needs no backup, waits for votes.
  if (oldest.has_value() && oldest->missing_workers.empty() &&
      oldest->missing_backup == -1) {
    oldest->missing_workers = votes_.Missing(oldest->round);
  }
  return oldest;
}

std::vector<int32_t> ServerMachine::current_backups() const {
  std::vector<int32_t> whole;
  for (const auto& [index, shard] : shards_) {
    if (shard.has_current_backup()) whole.push_back(index);
  }
  return whole;
}

const Shard* ServerMachine::shard(int index) const {
  const auto found = shards_.find(index);
  return found == shards_.end() ? nullptr : &found->second;
}

}  // namespace nereus
