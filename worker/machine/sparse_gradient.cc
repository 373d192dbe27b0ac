#include "worker/machine/sparse_gradient.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/compute/blocks.h"
#include "worker/machine/float_bytes.h"

namespace nereus {
namespace {

// Returns a choice of `count` of the `blocks`, evenly spread. In each round the
// chosen blocks move on by one.
std::vector<float> TakeTurns(int64_t blocks, int64_t count, int64_t round) {
  std::vector<float> choice(blocks, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    choice[(i * blocks / count + round) % blocks] =
        count == blocks ? kFirstChoice : kFirstChoice + 1;
  }
  return choice;
}

}  // namespace

BlockChoice ReadChoice(const Job& job, const Buffer& values, int64_t round) {
  if (values.data() == nullptr) {
    return std::make_shared<const std::vector<float>>(
        TakeTurns(job.block_count(), job.BlocksIn(round), round));
  }
  return std::make_shared<const std::vector<float>>(
      values.floats(), values.floats() + values.float_count());
}

SparseGradient::SparseGradient(const Job& job, int layer, bool keeps_residual)
    : layer_(layer),
      grid_(job.layers[layer].parameters, job.pool.block_length,
            job.pool.offsets[layer] % job.pool.block_length),
      pieces_{job.layers[layer].parameters, job.pool.block_length,
              job.pool.offsets[layer] % job.pool.block_length},
      first_block_(job.FirstBlock(job.placement.layer_chunks(layer)[0])),
      keeps_residual_(keeps_residual),
      holds_(grid_.Count(), false),
      place_(grid_.Count(), 0) {}

float SparseGradient::ChoiceOf(int64_t frame) const {
  return (*choice_)[BlockOf(frame)];
}

bool SparseGradient::travels(int64_t frame) const {
  return Travels(ChoiceOf(frame));
}

bool SparseGradient::resumes(int64_t frame) const {
  return Resumes(ChoiceOf(frame));
}

// SplitGradient moves the blocks that travel to the begin of the gradient's
// memory, one after the other.
std::vector<PieceUse> SparseGradient::PlaceBlocks() {
  std::vector<PieceUse> uses;
  int64_t placed = 0;
  for (int64_t frame = 0; frame < grid_.Count(); ++frame) {
    const bool held = holds_[frame];
    holds_[frame] = !travels(frame);
    if (holds_[frame]) {
      uses.push_back(held ? PieceUse::kHeld : PieceUse::kHeldFirst);
      continue;
    }
    uses.push_back(held ? PieceUse::kResumes : PieceUse::kTravels);
    place_[frame] = placed;
    placed += grid_.Length(frame);
  }
  return uses;
}

void SparseGradient::Begin(const Job& job, BlockChoice choice, Buffer gradient,
                           const Buffer& parameters, const Buffer& norms,
                           Outbox& out) {
  const OptimizerOptions& optimizer = job.options.optimizer;
  choice_ = std::move(choice);
  gradient_ = std::move(gradient);
  std::vector<PieceUse> uses = PlaceBlocks();
  // Allocates the residual when the first block does not travel. In the first
  // steps of a job, in which all blocks travel, the residual would be unused.
  const bool holds_some =
      absl::c_any_of(uses, [](PieceUse use) { return !Travels(use); });
  if (holds_some && keeps_residual_ && held_.bytes() == 0) {
    held_ = Buffer::AllocateLike(gradient_, gradient_.bytes());
    velocity_ = Buffer::AllocateLike(gradient_, gradient_.bytes());
  }
  out.Add(SplitGradient{
      layer_, pieces_, std::move(uses), optimizer.momentum,
      optimizer.weight_decay,
      norms.Slice(FloatBytes(first_block_), FloatBytes(grid_.Count())),
      parameters, gradient_, velocity_, held_});
}

Buffer SparseGradient::Contribution(int64_t offset, int64_t length) const {
  const int64_t frame = FrameAt(offset);
  const int64_t place = place_[frame] + offset - grid_.Offset(frame);
  return gradient_.Slice(FloatBytes(place), FloatBytes(length));
}

Buffer SparseGradient::held(int64_t frame) const {
  if (!holds_[frame]) return {};
  return held_.Slice(FloatBytes(grid_.Offset(frame)),
                     FloatBytes(grid_.Length(frame)));
}

}  // namespace nereus
