#include "worker/machine/result_assembly.h"

#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "worker/machine/float_bytes.h"

namespace nereus {

ResultAssembly::ResultAssembly(JobPtr job, int layer)
    : job_(std::move(job)), layer_(layer), frames_(*job_, layer) {}

void ResultAssembly::Expect(int64_t round, Buffer values, Buffer state,
                            std::optional<PeerId> donor,
                            const SparseGradient* sparse) {
  // While a round is open, only the same round may be expected again. Another
  // round in its place would lose the frames that are still to come.
  const bool same = open() && round == round_;
  if (same && donor == donor_) return;
  NEREUS_CHECK(!open() || same) << "round " << round_ << " of layer " << layer_;
  donor_ = donor;
  round_ = round;
  parts_ = 1 + static_cast<int>(state.bytes() / values.bytes());
  values_ = std::move(values);
  state_ = std::move(state);
  arrived_ = FrameSet(parts_ * frames_.count());
  if (sparse != nullptr) {
    LeaveOut(*sparse);
  } else if (job_->IsSparse(layer_)) {
    for (int part = 0; part < parts_; ++part) {
      for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
        LeaveOut(chunk, part, frames_.CountOf(chunk) - 1);
      }
    }
  }
}

void ResultAssembly::LeaveOut(const SparseGradient& sparse) {
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    const int64_t first = sparse.FrameAt(chunk.offset);
    bool any = false;
    for (int64_t frame = 0; frame < frames_.CountOf(chunk); ++frame) {
      const bool last = frame == frames_.CountOf(chunk) - 1;
      const bool comes = last ? !any : sparse.travels(first + frame);
      any = any || comes;
      if (!comes) LeaveOut(chunk, kValuesPart, frame);
    }
  }
}

void ResultAssembly::LeaveOut(const Chunk& chunk, int part, int64_t frame) {
  arrived_.Mark(IndexOf(chunk, part, frame));
}

int64_t ResultAssembly::IndexOf(const Chunk& chunk, int part,
                                int64_t frame) const {
  return part * frames_.count() + frames_.FirstOf(chunk) + frame;
}

absl::Status ResultAssembly::CheckSender(const Chunk& chunk,
                                         const FrameHeader& header) const {
  if (header.sender.role == Role::kShard) {
    const PeerId server = job_->ServerOf(chunk);
    if (header.sender == server) return absl::OkStatus();
    return RefuseFrame(header, "the chunk must come from ", PeerName(server));
  }
  if (header.round < round_ || header.sender == donor_) return absl::OkStatus();
  return RefuseFrame(header, "this worker did not ask for the layer");
}

absl::StatusOr<Landing> ResultAssembly::Place(const FrameHeader& header) const {
  const Chunk chunk = NEREUS_TRY(FindChunk(*job_, header));
  const int64_t frame = NEREUS_TRY(frames_.Find(chunk, header));
  if (header.kind == FrameKind::kResult) {
    NEREUS_TRY(CheckSender(chunk, header));
  }
  if (header.round < kInitialRound || header.round > round_) {
    return RefuseFrame(header, "this worker is at round ", round_);
  }
  // A shard's result is for the workers that took part in the round. A worker
  // that fetches the layer from a donor did not take part, and discards the
  // result.
  const bool unasked = donor_.has_value() && header.sender.role == Role::kShard;
  if (header.round < round_ || unasked) return Landing::Discard();
  if (header.part >= parts_) {
    return RefuseFrame(header, "the part must be below ", parts_);
  }
  if (arrived_.Has(IndexOf(chunk, header.part, frame))) {
    return Landing::Discard();
  }
  if (header.payload_bytes == 0) return Landing::Scratch();
  const int64_t offset = FloatBytes(chunk.offset + header.offset);
  if (header.part == kValuesPart) {
    return Landing::At(values_.Slice(offset, FloatBytes(header)));
  }
  const int64_t part_offset = (header.part - 1) * values_.bytes();
  return Landing::At(state_.Slice(part_offset + offset, FloatBytes(header)));
}

bool ResultAssembly::Count(const FrameHeader& header) {
  const Chunk& chunk = job_->placement.layer_chunks(layer_)[header.chunk];
  const int64_t frame = *frames_.Find(chunk, header);
  if (!arrived_.Mark(IndexOf(chunk, header.part, frame))) return false;
  values_ = Buffer();
  state_ = Buffer();
  return true;
}

bool ResultAssembly::Complete(const Chunk& chunk) const {
  for (int part = 0; part < parts_; ++part) {
    for (int64_t frame = 0; frame < frames_.CountOf(chunk); ++frame) {
      if (!arrived_.Has(IndexOf(chunk, part, frame))) return false;
    }
  }
  return true;
}

std::string ResultAssembly::Missing() const {
  return MissingOf([](const Chunk&) { return true; });
}

std::string ResultAssembly::MissingOf(
    const std::function<bool(const Chunk&)>& concerns) const {
  if (!open()) return "";
  if (donor_.has_value()) return job_->NameOf(*donor_);
  std::map<int, std::vector<int>> chunks_of_shard;
  for (const Chunk& chunk : job_->placement.layer_chunks(layer_)) {
    if (Complete(chunk) || !concerns(chunk)) continue;
    chunks_of_shard[job_->ServerOf(chunk).rank].push_back(chunk.index);
  }
  return absl::StrJoin(
      chunks_of_shard, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, "shard ", entry.first,
                        entry.second.size() == 1 ? " (chunk " : " (chunks ",
                        absl::StrJoin(entry.second, ", "), ")");
      });
}

ChunkFrames::ChunkFrames(const Job& job, int layer)
    : is_sparse_(job.IsSparse(layer)) {
  for (const Chunk& chunk : job.placement.layer_chunks(layer)) {
    grids_.push_back(job.GridOf(chunk));
    first_.push_back(count_);
    count_ += CountOf(chunk);
  }
}

absl::StatusOr<int64_t> ChunkFrames::Find(const Chunk& chunk,
                                          const FrameHeader& header) const {
  const bool is_empty = is_sparse_ && header.payload_bytes == 0 &&
                        header.offset == 0 && header.part == kValuesPart;
  if (is_empty) return CountOf(chunk) - 1;
  return FrameIndex(header, GridOf(chunk));
}

}  // namespace nereus
