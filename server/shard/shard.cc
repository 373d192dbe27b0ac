// Read in this order: a shard is made and begins (constructor, Start, Load), a
// frame is routed to its chunk (OnHeader, FindLanding, OnFrame), the backup is
// brought up to date (NoteBackup, SendNextToBackup), an epoch follows another
// one (OnEpoch), the last round is saved (SaveLast), and the shard is
// described. The rounds themselves are in chunk_rounds.cc.
//
// A kHave frame says which rounds of a chunk the backup has. If the backup
// lacks a round, the primary sends the whole chunk:
//
//   kHave: lacks a round --> behind_ --no other chunk on its way--> sending_
//   sending_ --kHave: has the chunk--> current; the next one of behind_ is sent

#include "server/shard/shard.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace nereus {
Shard::Shard(JobPtr job, int index, PeerId self)
    : epoch_{std::move(job), index, self, {}, false},
      saver_(&epoch_),
      checksums_(&epoch_) {
  epoch_.verdicts.Add(epoch_.job->history.verdicts);
  for (const Chunk& chunk : epoch_.job->placement.chunks()) {
    const bool is_here = chunk.shard == index;
    const auto next = static_cast<int>(chunks_.size());
    index_of_chunk_.push_back(is_here ? next : -1);
    if (is_here)
      chunks_.emplace_back(&epoch_, &saver_, &checksums_, next, chunk);
  }
}

void Shard::Start(Outbox& out) {
  // A backup that is not current loads nothing: the primary sends it every
  // chunk.
  const bool has_base = serves() || epoch_.servers().backup_is_current;
  if (has_base && epoch_.job->history.base_round != kInitialRound) Load(out);
  for (ChunkRounds& chunk : chunks_) chunk.Enter(out);
}

// Restore allocates the buffers; the driver reads the values into them.
void Shard::Load(Outbox& out) {
  LoadCheckpoint load;
  load.round = epoch_.job->history.base_round;
  for (ChunkRounds& chunk : chunks_) {
    if (!chunk.Restore()) continue;
    const HeldChunk& held = chunk.held();
    load.values.push_back({held.chunk.layer, held.chunk.offset,
                           held.chunk.length, held.parameters, held.state});
  }
  if (!load.values.empty()) out.Add(std::move(load));
}

// Frames.

// The placement numbers the chunks of all shards, layer by layer.
// index_of_chunk_ maps this number to the index in chunks_.
int Shard::IndexOf(const Chunk& chunk) const {
  const Placement& placement = epoch_.job->placement;
  const auto first = placement.layer_chunks(chunk.layer).data();
  return index_of_chunk_[first - placement.chunks().data() + chunk.index];
}

absl::StatusOr<Landing> Shard::OnHeader(PeerId from,
                                        const FrameHeader& header) const {
  NEREUS_TRY(CheckFrame(*epoch_.job, from, header));
  const Chunk chunk = NEREUS_TRY(FindChunk(*epoch_.job, header));
  return OnHeader(from, header, chunk);
}

absl::StatusOr<Landing> Shard::OnHeader(PeerId from, const FrameHeader& header,
                                        const Chunk& chunk) const {
  const int position = IndexOf(chunk);
  if (position < 0) {
    return RefuseFrame(header, "the chunk is shard ", chunk.shard,
                       "'s, this is shard ", index());
  }
  absl::StatusOr<Landing> landing = FindLanding(from, position, header);
  if (landing.ok() && Ignores(header.kind)) return Landing::Discard();
  return landing;
}

// A worker may send frames to the primary only, and a server only to the other
// server of the shard.
absl::StatusOr<Landing> Shard::FindLanding(PeerId from, int index,
                                           const FrameHeader& header) const {
  const ShardServers& servers = epoch_.servers();
  if (from.role == Role::kShard && servers.backup != -1) {
    if (from == epoch_.other()) return chunks_[index].OnServerHeader(header);
    return RefuseFrame(header, "server ", servers.primary,
                       " is the primary of ", "shard ", epoch_.shard,
                       " and server ", servers.backup, " its backup");
  }
  const int position =
      from.role == Role::kWorker ? epoch_.job->PositionOf(from.rank) : -1;
  if (position < 0)
    return RefuseFrame(header, "the sender must be a worker of the epoch");
  if (!serves())
    return RefuseFrame(header,
                       "this server is the shard's backup, not its primary");
  return chunks_[index].OnWorkerHeader(header, position);
}

void Shard::OnFrame(PeerId from, const Frame& frame, Outbox& out) {
  const auto chunk = FindChunk(*epoch_.job, frame.header);
  NEREUS_CHECK(chunk.ok()) << chunk.status();
  OnFrame(from, frame, *chunk, out);
}

void Shard::OnFrame(PeerId from, const Frame& frame, const Chunk& chunk,
                    Outbox& out) {
  if (Ignores(frame.header.kind)) return;
  const int position = IndexOf(chunk);
  NEREUS_CHECK(position >= 0)
      << DescribeFrame(frame.header) << " at shard " << index();
  ChunkRounds& rounds = chunks_[position];
  if (from.role == Role::kWorker) {
    const int worker = epoch_.job->PositionOf(from.rank);
    return rounds.OnWorkerFrame(frame, worker, out);
  }
  rounds.OnServerFrame(frame, out);
  if (serves()) NoteBackup(position, out);
}

void Shard::OnVerdict(const StepVerdict& verdict, Outbox& out) {
  epoch_.verdicts.Add({&verdict, 1});
  for (ChunkRounds& chunk : chunks_) chunk.CompleteIfDecided(out);
}

// The backup.

// Sends chunks to the backup one at a time, so that rounds of the other chunks
// close meanwhile.
void Shard::NoteBackup(int index, Outbox& out) {
  if (sending_ == index) sending_ = -1;
  if (chunks_[index].backup_state() == ChunkReplica::State::kBehind) {
    behind_.insert(index);
  }
  SendNextToBackup(out);
}

void Shard::SendNextToBackup(Outbox& out) {
  if (behind_.empty() || sending_ != -1) return;
  sending_ = *behind_.begin();
  behind_.erase(behind_.begin());
  chunks_[sending_].SendToBackup(out);
}

bool Shard::has_current_backup() const {
  return epoch_.has_backup() &&
         absl::c_all_of(chunks_, [](const ChunkRounds& chunk) {
           return chunk.backup_state() == ChunkReplica::State::kCurrent;
         });
}

// Epochs.

// Each chunk takes its new route before it begins its open round again
// (Reopen). Frames are sent only when all chunks have reopened (Enter).
void Shard::OnEpoch(JobPtr job, Outbox& out) {
  const bool served = serves();
  const JobPtr before = std::exchange(epoch_.job, std::move(job));
  epoch_.frozen = false;
  epoch_.verdicts.Add(epoch_.job->history.verdicts);
  const bool reroutes = served && epoch_.job->routes != before->routes;
  if (reroutes) {
    for (ChunkRounds& chunk : chunks_) chunk.Reroute(*before);
  }
  saver_.OnEpoch(served);
  behind_.clear();
  sending_ = -1;
  for (ChunkRounds& chunk : chunks_) chunk.Reopen();
  for (ChunkRounds& chunk : chunks_) chunk.Enter(out);
}

// Makes `round` a round of a checkpoint in this epoch, if it is not one yet:
// the two copies are compared. The primary saves all chunks as of this round.
// If this shard has saved them before, the sender's frames come again, because
// another shard has lost its part.
void Shard::SaveLast(int64_t round, int32_t sender, Outbox& out) {
  if (!epoch_.job->IsCheckpoint(round)) {
    auto job = std::make_shared<Job>(*epoch_.job);
    job->checkpoint_round = round;
    epoch_.job = std::move(job);
    for (ChunkRounds& chunk : chunks_) chunk.CompareLast(round, out);
  }
  if (!serves()) return;
  if (!saver_.BeginLast(round, sender)) return;
  for (ChunkRounds& chunk : chunks_) chunk.SaveLast(round, out);
}

std::optional<ReplicaChecksums> Shard::OnChecksum(const ChecksumValues& checked,
                                                  uint32_t crc) {
  const auto chunks = epoch_.job->placement.layer_chunks(checked.layer);
  return checksums_.OnChecksum(IndexOf(chunks[checked.chunk]), checked, crc);
}

// Reports.

std::optional<int64_t> Shard::closed_round() const {
  std::optional<int64_t> closed;
  for (const ChunkRounds& chunk : chunks_) {
    // Skips the block layer: its round may still be open when the workers have
    // finished the step, and would make the result too small.
    if (chunk.is_block_layer() || !chunk.uses_servers()) continue;
    const int64_t last = std::max(chunk.round() - 1, kInitialRound);
    closed = std::min(closed.value_or(last), last);
  }
  return closed;
}

// RoundSaver::handed_over() has a value once all values have arrived that
// workers hand over.
bool Shard::ready_to_switch() const {
  const Job& job = *epoch_.job;
  if (!job.switches()) return false;
  bool updates_all = true;
  for (const ChunkRounds& chunk : chunks_) {
    if (chunk.uses_servers() && chunk.round() <= job.switch_round) return false;
    updates_all = updates_all && epoch_.Updates(chunk.layer());
  }
  return updates_all || !job.hands_over() || saver_.handed_over().has_value();
}

MachineReport Shard::Report() const {
  MachineReport report;
  const std::optional<int64_t> closed = closed_round();
  if (closed.has_value()) report.closed_rounds[index()] = *closed;
  return report;
}

int64_t Shard::stored_bytes() const {
  int64_t bytes = 0;
  for (const ChunkRounds& chunk : chunks_) bytes += chunk.held().stored_bytes();
  return bytes;
}

int64_t Shard::held_bytes() const {
  int64_t bytes = saver_.held_bytes();
  for (const ChunkRounds& chunk : chunks_) bytes += chunk.held_bytes();
  return bytes;
}

std::optional<Shard::OpenRound> Shard::oldest_open_round() const {
  const ChunkRounds* oldest = nullptr;
  for (const ChunkRounds& chunk : chunks_) {
    const bool takes_rounds =
        chunk.round() == kInitialRound || chunk.uses_servers();
    if (takes_rounds &&
        (oldest == nullptr || chunk.round() < oldest->round())) {
      oldest = &chunk;
    }
  }
  if (oldest == nullptr) return std::nullopt;
  OpenRound open{oldest->layer(), oldest->round(), {}};
  if (oldest->waits_for_backup()) open.missing_backup = epoch_.servers().backup;
  for (const int position : oldest->MissingWorkers()) {
    open.missing_workers.push_back(epoch_.job->workers[position].rank);
  }
  return open;
}

const ChunkRounds& Shard::chunk(int layer, int chunk) const {
  return chunks_[IndexOf(epoch_.job->placement.layer_chunks(layer)[chunk])];
}

}  // namespace nereus
