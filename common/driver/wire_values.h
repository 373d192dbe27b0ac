#pragma once

#include "common/plan/wire_type.h"
#include "common/protocol/frame.h"
#include "common/protocol/outbox.h"
#include "common/tensor/arrival.h"
#include "common/tensor/buffer.h"

namespace nereus {

// Conversions between float32 values, with which machines work, and payloads in
// a wire type. A machine gives its driver float32 values, whatever the wire
// type of the frame. The driver encodes payloads when it sends them. It decodes
// received ones before the machine reads them, or as it adds them
// (AccumulatePayload).
//
// With kFloat16, each frame has a scale of its own
// (common/compute/frame_halves.h). In plain fp16 small gradients would become
// zero.
//
// In each wire type, values that were decoded and are encoded again, with
// frames that begin and end at the same values, give the same bits.

// Replaces a payload of float32 values by its encoding in the wire type
// header.wire, in new memory, and sets header.exponent. Does nothing if the
// wire type is float32 or kNone.
void EncodePayload(Frame& frame);

// True if a payload in this wire type is not float32, so that it must be
// decoded.
inline bool IsEncoded(WireType wire) {
  return wire == WireType::kBfloat16 || wire == WireType::kFloat16;
}
inline bool IsEncoded(const FrameHeader& header) {
  return IsEncoded(header.wire);
}

// Decodes `payload`, which has the wire type header.wire, into `values`, one
// float32 for each encoded value.
void DecodePayload(const FrameHeader& header, const Buffer& payload,
                   const Buffer& values);

// Carries out an Accumulate with an encoded addend. Decodes, checks and adds
// 1024 values at a time, so that they are still in the L1 cache when they are
// added. If the addend asks for a check and a value is NaN or too large
// (kTooLarge), stops and returns the first such value. Otherwise returns a
// BadValue with an index below 0. REQUIRES: the sum has memory.
BadValue AccumulatePayload(const Accumulate& accumulate);

// Replaces each value by the value that a receiver would decode if `values`
// were sent in the format `wire`, in frames of kFrameElementsMax values. The
// first frame begins at the first value.
void RoundToWire(WireType wire, const Buffer& values);

}  // namespace nereus
