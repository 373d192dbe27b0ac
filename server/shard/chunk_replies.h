#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/protocol/outbox.h"
#include "server/shard/held_chunk.h"
#include "server/shard/shard_epoch.h"

namespace nereus {

// Request of a worker for a chunk's values as of a round.
struct PullRequest {
  int rank = 0;       // Rank of the worker.
  int64_t round = 0;  // Round of the result that it wants.
};

// Answers of a shard to the workers about one chunk: results, values, and the
// requests for rounds that are still open.
//
// A worker may ask for each round once in an epoch, and may have a lost result
// sent again once. Without this limit, a worker that only asks would fill the
// queue of frames to it.
class ChunkReplies {
 public:
  // Both are borrowed and must outlive this.
  ChunkReplies(const ShardEpoch* epoch, const HeldChunk* held)
      : epoch_(*epoch), held_(*held) {}

  // Forgets all requests: a new epoch begins, and workers ask again.
  void Reset();

  // Last round that the worker at `position` has pulled, and last round of
  // which it has asked for the result again.
  int64_t& pulled(int position) { return pulled_[position]; }
  int64_t pulled(int position) const { return pulled_[position]; }
  int64_t& repeated(int position) { return repeated_[position]; }
  int64_t repeated(int position) const { return repeated_[position]; }

  // Keeps a request until TakeWaiting, or until DropWaiting.
  void Wait(PullRequest request) { waiting_.push_back(request); }
  // Returns the waiting requests, and keeps none of them.
  std::vector<PullRequest> TakeWaiting();
  void DropWaiting() { waiting_.clear(); }

  // Notes the frames that a closing sparse round has; none: it is not sparse.
  void NoteFrames(std::vector<bool> frames) {
    closed_frames_ = std::move(frames);
  }
  // Notes that a round has closed that was complete in `epoch`.
  void NoteClosed(uint64_t epoch) { closed_in_ = epoch; }
  // Epoch in which the last closed round was complete.
  uint64_t closed_in() const { return closed_in_; }

  // Sends a worker the chunk's values as of `round`, with the optimizer's state
  // where workers own the layer and have restored it.
  void SendValues(const PullRequest& request, Outbox& out) const;
  // Sends `result` of `round` to all workers.
  void Broadcast(int64_t round, const Buffer& result, Outbox& out) const;

 private:
  // Calls `send` with the frames of a result. Of a sparse round these are the
  // frames that it had, or one frame without payload if it had none. `whole`
  // sends all frames and that one, for a worker that may have begun the round
  // with another choice of blocks.
  template <typename Send>
  void CutResult(bool whole, FrameHeader header, const Buffer& values,
                 Send send) const;
  FrameHeader ResultHeader(int64_t round) const;

  const ShardEpoch& epoch_;
  const HeldChunk& held_;   // Values that answers carry.
  uint64_t closed_in_ = 0;  // Epoch in which the last closed round completed.
  std::vector<bool> closed_frames_;   // Frames of that round, if sparse.
  std::vector<int64_t> pulled_;       // Last rounds, by worker's position.
  std::vector<int64_t> repeated_;     // Last rounds, by worker's position.
  std::vector<PullRequest> waiting_;  // Requests for rounds still open.
};

}  // namespace nereus
