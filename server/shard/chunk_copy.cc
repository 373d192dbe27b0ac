#include "server/shard/chunk_copy.h"

#include <utility>

#include "common/base/logging.h"

namespace nereus {

ChunkCopy::ChunkCopy(int64_t round, int64_t elements, int state_arrays,
                     bool has_average)
    : round_(round),
      elements_(elements),
      state_arrays_(state_arrays),
      parts_(1 + state_arrays + (has_average ? 1 : 0)),
      arrived_(parts_ * FrameCount(elements)) {}

bool ChunkCopy::Has(int part, int64_t frame) const {
  return is_taken_ || arrived_.Has(part * FrameCount(elements_) + frame);
}

void ChunkCopy::Take(Buffer parameters, Buffer state) {
  parameters_ = std::move(parameters);
  state_ = std::move(state);
  is_taken_ = true;
}

// Part 0 has the parameters; the mean, if there is one, is the last part.
Buffer ChunkCopy::Place(int part) const {
  const int64_t bytes = elements_ * static_cast<int64_t>(sizeof(float));
  if (part == kValuesPart) return parameters_;
  if (part > state_arrays_) return average_;
  return state_.Slice((part - 1) * bytes, bytes);
}

void ChunkCopy::Add(int part, int64_t frame, const Buffer& payload,
                    Outbox& out) {
  NEREUS_CHECK(!Has(part, frame)) << "part " << part << " frame " << frame;
  // Allocates the memory only now, because the first payload shows whether
  // payloads have values or only a size.
  if (parameters_.bytes() == 0) {
    const int64_t bytes = elements_ * static_cast<int64_t>(sizeof(float));
    parameters_ = Buffer::AllocateLike(payload, bytes);
    state_ = Buffer::AllocateLike(payload, bytes * state_arrays_);
    if (parts_ > 1 + state_arrays_) {
      average_ = Buffer::AllocateLike(payload, bytes);
    }
  }
  const int64_t start = frame * kFramePayloadBytesMax;
  out.Add(CopyValues{Place(part).Slice(start, payload.bytes()), payload});
  arrived_.Mark(part * FrameCount(elements_) + frame);
}

}  // namespace nereus
