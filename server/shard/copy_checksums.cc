#include "server/shard/copy_checksums.h"

#include <utility>

namespace nereus {

CopyChecksums::CopyChecksums(const ShardEpoch* epoch) : epoch_(*epoch) {
  for (const Chunk& chunk : epoch->job->placement.chunks()) {
    if (chunk.shard == epoch->shard) layers_.push_back(chunk.layer);
  }
}

// The block layer of a sparse job is left out: in checkpoints it is, too.
bool CopyChecksums::IsUpdated(int index) const {
  const int32_t layer = layers_[index];
  return layer != epoch_.job->pool.layer && epoch_.Updates(layer);
}

CopyChecksums::Range CopyChecksums::ChunksOf(int64_t round) const {
  const auto chunks = static_cast<int>(layers_.size());
  if (round == kInitialRound || chunks == 0) return {};
  if (epoch_.job->IsCheckpoint(round)) return {0, chunks};
  if ((round + 1) % kCopyCheckRounds != 0) return {};
  return {static_cast<int>((round + 1) / kCopyCheckRounds % chunks), 1};
}

void CopyChecksums::Compute(int index, int64_t round, const HeldChunk& held,
                            Outbox& out) {
  const Range range = ChunksOf(round);
  if (!range.Has(index) || !IsUpdated(index)) return;
  const auto [found, is_new] = open_.try_emplace(round);
  Open& open = found->second;
  if (is_new) {
    open.range = range;
    open.checksums.resize(2 * static_cast<size_t>(range.count));
    for (int each = range.first; each < range.first + range.count; ++each) {
      open.chunks_missing += IsUpdated(each);
    }
  }
  --open.chunks_missing;
  const auto add = [&](const Buffer& values, bool is_state) {
    ++open.sums_missing;
    ChecksumValues checksum{held.chunk.layer, round, values};
    checksum.chunk = held.chunk.index;
    checksum.is_state = is_state;
    out.Add(std::move(checksum));
  };
  add(held.parameters, /*is_state=*/false);
  if (held.state.bytes() > 0) add(held.state, /*is_state=*/true);
  if (open_.size() > kOpenMax) open_.erase(open_.begin());
}

std::optional<ReplicaChecksums> CopyChecksums::OnChecksum(
    int index, const ChecksumValues& checked, uint32_t crc) {
  const auto found = open_.find(checked.round);
  if (found == open_.end()) return std::nullopt;
  Open& open = found->second;
  if (!open.range.Has(index)) return std::nullopt;
  open.checksums[2 * static_cast<size_t>(index - open.range.first) +
                 (checked.is_state ? 1 : 0)] = crc;
  if (--open.sums_missing > 0 || open.chunks_missing > 0) return std::nullopt;
  ReplicaChecksums all;
  all.round = checked.round;
  all.shard = epoch_.shard;
  all.first_chunk = open.range.first;
  all.layers = std::move(open.checksums);
  open_.erase(found);
  return all;
}

}  // namespace nereus
