#include "server/shard/round_saver.h"

#include <utility>

#include "common/base/status_macros.h"

namespace nereus {
namespace {

// The choice of blocks is not saved: a restored job begins with all blocks.
std::vector<Chunk> SavedChunks(const Job& job, std::vector<Chunk> chunks) {
  std::erase_if(chunks, [&](const Chunk& chunk) {
    return chunk.layer == job.block_layer;
  });
  return chunks;
}

}  // namespace

RoundSaver::RoundSaver(const ShardEpoch* epoch,
                       const std::vector<Chunk>& chunks)
    : epoch_(*epoch),
      collector_(SavedChunks(*epoch->job, chunks), epoch->job->state_arrays) {}

// A server that was the backup, or has become it, collects from scratch.
void RoundSaver::OnEpoch(bool was_serving) {
  last_sender_ = -1;
  handed_over_.reset();
  if (epoch_.serves() != was_serving) collector_.Clear();
}

bool RoundSaver::BeginLast(int64_t round, int32_t sender) {
  last_sender_ = sender;
  if (saved_round_ == round) return false;  // Saved as a checkpoint.
  collector_.Reopen(round);
  return true;
}

// Frames that come before the coordinator has named their sender wait for its
// word. Until then only the first worker sends.
absl::StatusOr<Landing> RoundSaver::OnOwnedHeader(int index,
                                                  const HeldChunk& held,
                                                  const FrameHeader& header,
                                                  int position) const {
  const Job& job = *epoch_.job;
  const bool updates_here = epoch_.Updates(held.chunk.layer);
  // The coordinator may tell the sender of the last round before this shard;
  // and another worker, if the first sender is gone.
  const bool is_early = last_sender_ == -1 && job.options.has_checkpoints &&
                        header.round > job.base_round &&
                        (position != 0 || !job.IsSaved(header.round));
  if (is_early && !updates_here) return Landing::Wait();
  const bool may_send = position == 0 || last_sender_ != -1;
  if (updates_here || !may_send || !job.IsSaved(header.round) ||
      header.part >= collector_.parts()) {
    return RefuseFrame(
        header,
        "the first worker sends layers that workers own, as of the rounds that "
        "checkpoints are made of, or a plan's last");
  }
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, held.chunk.length));
  return collector_.Has(index, header.round, header.part, frame)
             ? Landing::Discard()
             : Landing::Scratch();
}

void RoundSaver::OnOwnedFrame(int index, const Frame& frame, Outbox& out) {
  OnCollected(collector_.AddFrame(index, frame.header.round, frame.header.part,
                                  frame.header.offset / kFrameElementsMax,
                                  frame.payload, out),
              out);
}

void RoundSaver::Collect(int index, int64_t round, const HeldChunk& held,
                         Outbox& out) {
  const Job& job = *epoch_.job;
  if (held.chunk.layer == job.block_layer || !job.IsSaved(round)) return;
  OnCollected(collector_.Add(index, round, held.parameters, held.state), out);
}

void RoundSaver::CollectHandedOver(int index, int64_t round, Outbox& out) {
  if (!handed_over_.has_value() || handed_over_->round != round) return;
  const ChunkValues& owned = handed_over_->values[index];
  OnCollected(collector_.Add(index, round, owned.parameters, owned.state), out);
}

// The values of a switch round go to the next plan, and to disk if it is a
// checkpoint as well.
void RoundSaver::OnCollected(
    std::optional<CheckpointCollector::Collected> collected, Outbox& out) {
  if (!collected.has_value()) return;
  const Job& job = *epoch_.job;
  if (job.IsCheckpoint(collected->round) || last_sender_ != -1) {
    saved_round_ = collected->round;
    out.Add(SaveCheckpoint{epoch_.shard, collected->round, collected->values});
  }
  if (!job.hands_over() || collected->round != job.switch_round) return;
  // The shard holds the values of the other chunks itself.
  for (ChunkValues& values : collected->values) {
    if (epoch_.Updates(values.layer)) values = {};
  }
  handed_over_ = std::move(collected);
}

int64_t RoundSaver::held_bytes() const {
  int64_t bytes = collector_.held_bytes();
  if (!handed_over_.has_value()) return bytes;
  for (const ChunkValues& values : handed_over_->values) {
    bytes += values.parameters.bytes() + values.state.bytes();
  }
  return bytes;
}

}  // namespace nereus
