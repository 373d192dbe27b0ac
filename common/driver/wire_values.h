#pragma once

#include "common/plan/wire_type.h"
#include "common/protocol/frame.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Conversions between the float32 values that machines work with and the
// payloads of frames. Machines hand over float32, whatever the wire type of a
// frame; their drivers encode payloads to send and decode received ones.
//
// kFloat16 is scaled frame by frame (common/compute/frame_halves.h), so that
// small gradients do not become zero as in plain fp16. Rounding is idempotent:
// decoded values are encoded to the same bits again, if they are cut into
// frames at the same places.

// Replaces a payload of float32 values by its encoding in header.wire, in new
// memory, and sets header.exponent. Does nothing if the wire type needs no
// encoding.
void EncodePayload(Frame& frame);

// True if a payload in this wire type has to be decoded.
inline bool IsEncoded(WireType wire) {
  return wire == WireType::kBfloat16 || wire == WireType::kFloat16;
}
inline bool IsEncoded(const FrameHeader& header) {
  return IsEncoded(header.wire);
}

// Decodes the payload of a frame into `values`: one float32 for each encoded
// value.
void DecodePayload(const FrameHeader& header, const Buffer& payload,
                   const Buffer& values);

// Carries out an Accumulate on an encoded addend. Decodes, checks and adds
// about a thousand values at a time, so that they are still in the L1 cache
// when they are added. Returns the first value that is NaN or infinite, and
// stops there. Its index is below 0 if all are finite or the addend asks for no
// check. REQUIRES: the sum has memory.
NotFinite AccumulatePayload(const Accumulate& accumulate);

// Replaces each value by the value that a receiver decodes. `values` begin
// where a frame begins, and are cut into frames of kFrameElementsMax values.
void RoundToWire(WireType wire, const Buffer& values);

}  // namespace nereus
