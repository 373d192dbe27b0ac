#include "worker/result_assembly.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"

namespace nereus {

ResultAssembly::ResultAssembly(JobPtr job, int layer)
    : job_(std::move(job)), layer_(layer) {
  int64_t frames = 0;
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    first_frame_.push_back(frames);
    frames += FrameCount(chunk.length);
  }
  arrived_.assign(frames, true);
}

void ResultAssembly::Open(int64_t round, Buffer target) {
  NEREUS_CHECK(!open()) << "round " << round_ << " of layer " << layer_;
  round_ = round;
  target_ = std::move(target);
  arrived_.assign(arrived_.size(), false);
  missing_ = static_cast<int64_t>(arrived_.size());
}

int64_t ResultAssembly::Position(const Chunk& chunk, int64_t frame) const {
  return first_frame_[chunk.index] + frame;
}

absl::StatusOr<Landing> ResultAssembly::Place(const FrameHeader& header) const {
  NEREUS_ASSIGN_OR_RETURN(const Chunk chunk, FindChunk(*job_, header));
  NEREUS_ASSIGN_OR_RETURN(const int64_t frame,
                          FrameIndex(header, chunk.length));
  if (header.sender != PeerId::Shard(chunk.shard)) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": the chunk is shard ", chunk.shard, "'s"));
  }
  if (header.round < kInitialRound || header.round > round_) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": this worker is at round ", round_));
  }
  if (header.round < round_ || arrived_[Position(chunk, frame)]) {
    return Landing::Discard();
  }
  const int64_t offset = (chunk.offset + header.offset) * 4;
  return Landing::At(target_.Slice(offset, header.payload_bytes));
}

bool ResultAssembly::Count(const FrameHeader& header) {
  const Chunk& chunk = job_->placement.layer_chunks(layer_)[header.chunk];
  arrived_[Position(chunk, header.offset / kFrameElementsMax)] = true;
  if (--missing_ > 0) return false;
  target_ = Buffer();
  return true;
}

std::string ResultAssembly::Missing() const {
  std::map<int, std::vector<int>> chunks_of_shard;
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    for (int64_t frame = 0; frame < FrameCount(chunk.length); ++frame) {
      if (arrived_[Position(chunk, frame)]) continue;
      chunks_of_shard[chunk.shard].push_back(chunk.index);
      break;
    }
  }
  return absl::StrJoin(
      chunks_of_shard, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, "shard ", entry.first,
                        entry.second.size() == 1 ? " (chunk " : " (chunks ",
                        absl::StrJoin(entry.second, ", "), ")");
      });
}

}  // namespace nereus
