#include "server/shard/round_saver.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/status.h"

namespace nereus {
namespace {

// Largest number of incomplete rounds. Two may be needed, because a chunk may
// be one round ahead of another one.
constexpr size_t kOpenMax = 2;

}  // namespace

// The block layer is not saved: a restored job begins with all blocks chosen.
RoundSaver::RoundSaver(const ShardEpoch* epoch) : epoch_(*epoch) {
  for (const Chunk& chunk : epoch->job->placement.chunks()) {
    const bool is_saved = chunk.layer != epoch->job->pool.layer;
    if (chunk.shard == epoch->shard && is_saved) chunks_.push_back(chunk);
  }
}

// A server that has become the primary or the backup drops what it has
// collected.
void RoundSaver::OnEpoch(bool was_serving) {
  last_sender_ = -1;
  handed_over_.reset();
  if (epoch_.serves() != was_serving) open_.clear();
}

bool RoundSaver::BeginLast(int64_t round, int32_t sender) {
  last_sender_ = sender;
  if (saved_round_ == round) return false;  // Saved as a checkpoint.
  // Lets the round be collected again, if it was collected for the next plan.
  last_round_ = std::min(last_round_, round - 1);
  return true;
}

const RoundSaver::Collection* RoundSaver::Find(int64_t round) const {
  const auto found = absl::c_find_if(
      open_, [&](const auto& each) { return each.round == round; });
  return found == open_.end() ? nullptr : &*found;
}

// Rounds are kept in ascending order, so that the front is the oldest one. If
// more than kOpenMax rounds are open, Open gives up the oldest: the worker that
// should have sent its frames is gone.
RoundSaver::Collection* RoundSaver::Open(int64_t round) {
  if (round <= last_round_) return nullptr;
  if (Find(round) == nullptr) {
    Collection made{round, {}, std::ssize(chunks_)};
    for (const Chunk& chunk : chunks_) {
      made.chunks.emplace_back(round, chunk.length, epoch_.job->state_arrays,
                               /*has_average=*/false);
    }
    const auto place = absl::c_find_if(
        open_, [&](const auto& each) { return each.round > round; });
    open_.insert(place, std::move(made));
  }
  if (open_.size() > kOpenMax) {
    last_round_ = open_.front().round;
    open_.pop_front();
  }
  return const_cast<Collection*>(Find(round));
}

// Frames that arrive before the coordinator has named their sender wait until
// it has done so. Without a named sender, only the first worker may send.
absl::StatusOr<Landing> RoundSaver::OnOwnedHeader(int index,
                                                  const HeldChunk& held,
                                                  const FrameHeader& header,
                                                  int position) const {
  const Job& job = *epoch_.job;
  const bool updates_here = epoch_.Updates(held.chunk.layer);
  // The coordinator's SaveLast may reach the sender of the last round before it
  // reaches this shard, and the sender need not be the first worker.
  const bool is_early = last_sender_ == -1 && job.options.has_checkpoints &&
                        header.round > job.history.base_round &&
                        (position != 0 || !job.IsSaved(header.round));
  if (is_early && !updates_here) return Landing::Wait();
  const bool may_send = position == 0 || last_sender_ != -1;
  if (updates_here || !may_send || !job.IsSaved(header.round) ||
      header.part > job.state_arrays) {
    return RefuseFrame(header,
                       "only the sender that the coordinator has named, by "
                       "default the first worker, sends worker-owned layers, "
                       "and only as of rounds that are saved");
  }
  const int64_t frame = NEREUS_TRY(FrameIndex(header, held.chunk.length));
  const Collection* collection = Find(header.round);
  const bool is_here = header.round <= last_round_ ||
                       (collection != nullptr &&
                        collection->chunks[index].Has(header.part, frame));
  return is_here ? Landing::Discard() : Landing::Scratch();
}

void RoundSaver::OnOwnedFrame(int index, const Frame& frame, Outbox& out) {
  Collection* collection = Open(frame.header.round);
  if (collection == nullptr) return;
  ChunkCopy& copy = collection->chunks[index];
  copy.Add(frame.header.part, frame.header.offset / kFrameElementsMax,
           frame.payload, out);
  if (copy.complete()) FinishChunk(*collection, out);
}

void RoundSaver::Collect(int index, int64_t round, const HeldChunk& held,
                         Outbox& out) {
  const Job& job = *epoch_.job;
  if (held.chunk.layer == job.pool.layer || !job.IsSaved(round)) return;
  Add(index, round, held.parameters, held.state, out);
}

void RoundSaver::CollectHandedOver(int index, int64_t round, Outbox& out) {
  if (!handed_over_.has_value() || handed_over_->round != round) return;
  const ChunkValues owned = handed_over_->values[index];
  Add(index, round, owned.parameters, owned.state, out);
}

void RoundSaver::Add(int index, int64_t round, const Buffer& parameters,
                     const Buffer& state, Outbox& out) {
  Collection* collection = Open(round);
  if (collection == nullptr || collection->chunks[index].complete()) return;
  collection->chunks[index].Take(parameters, state);
  FinishChunk(*collection, out);
}

// The values of a switch round are kept for the next plan. The values of a
// checkpoint and of the job's last round go to disk. A switch round may be a
// checkpoint, too.
void RoundSaver::FinishChunk(Collection& collection, Outbox& out) {
  if (--collection.missing > 0) return;
  last_round_ = collection.round;
  Saved saved{last_round_, {}};
  for (size_t index = 0; index < chunks_.size(); ++index) {
    const Chunk& chunk = chunks_[index];
    const ChunkCopy& copy = collection.chunks[index];
    saved.values.push_back({chunk.layer, chunk.offset, chunk.length,
                            copy.parameters(), copy.state()});
  }
  std::erase_if(open_,
                [&](const auto& each) { return each.round <= last_round_; });
  const Job& job = *epoch_.job;
  if (job.IsCheckpoint(saved.round) || last_sender_ != -1) {
    saved_round_ = saved.round;
    out.Add(SaveCheckpoint{epoch_.shard, saved.round, saved.values});
  }
  if (!job.hands_over() || saved.round != job.switch_round) return;
  // Keeps only worker-owned layers: the shard itself has the values of the
  // others.
  for (ChunkValues& values : saved.values) {
    if (epoch_.Updates(values.layer)) values = {};
  }
  handed_over_ = std::move(saved);
}

int64_t RoundSaver::held_bytes() const {
  int64_t bytes = 0;
  for (const Collection& collection : open_) {
    for (const ChunkCopy& chunk : collection.chunks)
      bytes += chunk.held_bytes();
  }
  if (!handed_over_.has_value()) return bytes;
  for (const ChunkValues& values : handed_over_->values) {
    bytes += values.parameters.bytes() + values.state.bytes();
  }
  return bytes;
}

}  // namespace nereus
