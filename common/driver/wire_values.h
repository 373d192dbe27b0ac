#pragma once

#include "common/plan/wire_type.h"
#include "common/protocol/frame.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Between the float32 values that machines work with and what frames carry.
// Machines hand over float32, whatever the frame's wire type; their drivers
// encode what is sent and decode what has arrived.
//
// kFloat16 is scaled frame by frame (common/compute/frame_halves.h), so that
// gradients need no loss scaling for the way. Rounding is idempotent: values
// that have been decoded are encoded to the same bits, if they are cut into
// frames at the same places.

// Makes the payload, float32 values, what header.wire says: memory of its own
// where that is not float32. Sets header.exponent.
void EncodePayload(Frame& frame);

// Whether a received payload has to be decoded.
inline bool IsEncoded(const FrameHeader& header) {
  return header.wire == WireType::kBfloat16 ||
         header.wire == WireType::kFloat16;
}

// Writes the values of `payload`, as `header` has announced it, to `values`, as
// many float32.
void DecodePayload(const FrameHeader& header, const Buffer& payload,
                   const Buffer& values);

// The same, and then sum += values, in pieces that stay in the L1 cache. If it
// `checks`, it returns the index of the first value that is NaN or infinite,
// and stops there; else, and if there is none, -1.
int64_t AddPayload(const FrameHeader& header, const Buffer& payload,
                   bool checks, const Buffer& sum);

// Makes each of `values` what a receiver gets who is sent them in frames from
// the first one on.
void RoundToWire(WireType wire, const Buffer& values);

}  // namespace nereus
