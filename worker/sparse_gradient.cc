#include "worker/sparse_gradient.h"

#include <utility>

#include "common/compute/blocks.h"

namespace nereus {
namespace {

int64_t BytesOf(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(float));
}

// `count` of `blocks`, evenly spread, others in each round.
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

SparseGradient::SparseGradient(const Job& job, int layer)
    : grid_(job.layers[layer].parameters, job.block_length,
            job.pool_offsets[layer] % job.block_length),
      first_block_(job.FirstBlock(job.placement.layer_chunks(layer)[0])),
      holds_(grid_.Count(), false) {}

float SparseGradient::ChoiceOf(int64_t frame) const {
  return (*choice_)[BlockOf(frame)];
}

bool SparseGradient::travels(int64_t frame) const {
  return Travels(ChoiceOf(frame));
}

bool SparseGradient::resumes(int64_t frame) const {
  return Resumes(ChoiceOf(frame));
}

void SparseGradient::Begin(const Job& job, BlockChoice choice, Buffer gradient,
                           const Buffer& parameters, const Buffer& norms,
                           Outbox& out) {
  const OptimizerOptions& optimizer = job.options.optimizer;
  choice_ = std::move(choice);
  gradient_ = std::move(gradient);
  if (held_.data() != nullptr && !held_.unique()) {
    // Frames of a contribution that was made again are still on their way.
    const Buffer sent = std::exchange(held_, Buffer::Allocate(held_.bytes()));
    out.Add(CopyValues{held_, sent});
  }
  for (int64_t frame = 0; frame < grid_.Count(); ++frame) {
    const auto part = [&](const Buffer& values) {
      return values.Slice(BytesOf(grid_.Offset(frame)),
                          BytesOf(grid_.Length(frame)));
    };
    const Buffer norm = norms.Slice(BytesOf(BlockOf(frame)), BytesOf(1));
    const bool goes = travels(frame);
    if (!goes || holds_[frame]) {
      if (held_.bytes() == 0) {
        held_ = Buffer::AllocateLike(gradient_, gradient_.bytes());
        velocity_ = Buffer::AllocateLike(gradient_, gradient_.bytes());
      }
      // The update adds the decay of the last of these rounds.
      out.Add(HoldGradient{optimizer.momentum,
                           goes ? 0.0f : optimizer.weight_decay, !holds_[frame],
                           goes ? Buffer() : norm, part(gradient_),
                           part(parameters), part(velocity_), part(held_)});
      holds_[frame] = true;
    }
    if (goes) out.Add(AddNorm{norm, part(gradient_)});
  }
}

void SparseGradient::End() {
  gradient_ = Buffer();
  if (choice_ == nullptr) return;
  for (int64_t frame = 0; frame < grid_.Count(); ++frame) {
    if (travels(frame)) holds_[frame] = false;
  }
}

Buffer SparseGradient::Contribution(int64_t offset, int64_t length) const {
  const bool held = holds_[FrameAt(offset)];
  return (held ? held_ : gradient_).Slice(BytesOf(offset), BytesOf(length));
}

Buffer SparseGradient::held(int64_t frame) const {
  if (!holds_[frame]) return {};
  return held_.Slice(BytesOf(grid_.Offset(frame)),
                     BytesOf(grid_.Length(frame)));
}

}  // namespace nereus
