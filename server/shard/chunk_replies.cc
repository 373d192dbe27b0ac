#include "server/shard/chunk_replies.h"

#include <utility>

namespace nereus {

void ChunkReplies::Reset() {
  const size_t workers = epoch_.job->workers.size();
  pulled_.assign(workers, kInitialRound - 1);
  repeated_.assign(workers, kInitialRound - 1);
  waiting_.clear();
}

std::vector<PullRequest> ChunkReplies::TakeWaiting() {
  return std::exchange(waiting_, {});
}

FrameHeader ChunkReplies::ResultHeader(int64_t round) const {
  return MakeHeader(*epoch_.job, epoch_.self, FrameKind::kResult,
                    held_.chunk.layer, held_.chunk.index, round);
}

// A sparse result has the frames of its round. A frame without payload follows
// if there are none, or if all of the chunk was sent.
template <typename Send>
void ChunkReplies::CutResult(bool whole, FrameHeader header,
                             const Buffer& values, Send send) const {
  const Job& job = *epoch_.job;
  const FrameGrid grid = job.GridOf(held_.chunk);
  if (!job.IsSparse(held_.chunk.layer)) {
    return CutIntoFrames(job, header, grid, values, send);
  }
  whole = whole || closed_frames_.empty();
  bool none = true;
  for (int64_t index = 0; index < grid.Count(); ++index) {
    if (!whole && !closed_frames_[index]) continue;
    send(CutFrame(job, header, grid, index, values));
    none = false;
  }
  if (!whole && !none) return;
  header.wire = job.WireOf(header);
  send(Frame{header, {}});
}

void ChunkReplies::Broadcast(int64_t round, const Buffer& result,
                             Outbox& out) const {
  CutResult(/*whole=*/false, ResultHeader(round), result,
            [&](Frame frame) { out.Add(BroadcastFrame{std::move(frame)}); });
}

// A worker that joins gets all values; a worker of the round gets its result.
void ChunkReplies::SendValues(const PullRequest& request, Outbox& out) const {
  const Job& job = *epoch_.job;
  const bool is_mean = job.options.optimizer_place == OptimizerPlace::kWorker &&
                       request.round > job.base_round;
  const Buffer& values = is_mean ? held_.mean : held_.parameters;
  const FrameGrid grid = job.GridOf(held_.chunk);
  const auto send = [&](Frame frame) {
    out.Add(SendFrame{PeerId::Worker(request.rank), std::move(frame)});
  };
  FrameHeader header = ResultHeader(request.round);
  const int position = job.PositionOf(request.rank);
  if (position >= 0 && request.round >= job.workers[position].first_step) {
    CutResult(/*whole=*/closed_in_ != job.epoch, header, values, send);
  } else {
    CutIntoFrames(job, header, grid, values, send);
  }
  // Layers that workers own have a state here once it was restored.
  if (is_mean || epoch_.Updates(held_.chunk.layer)) return;
  const int64_t bytes = held_.parameters.bytes();
  for (int64_t start = 0; start < held_.state.bytes(); start += bytes) {
    ++header.part;
    CutIntoFrames(job, header, grid, held_.state.Slice(start, bytes), send);
  }
}

}  // namespace nereus
