#include "common/driver/wire_values.h"

#include <algorithm>
#include <cstdint>

#include "common/base/logging.h"
#include "common/compute/frame_halves.h"
#include "common/compute/half.h"
#include "common/compute/vectors.h"

namespace nereus {
namespace {

// Number of values that AccumulatePayload decodes at a time. They fit into the
// L1 cache.
constexpr int64_t kBlock = 1024;

// Returns the 16-bit numbers of an encoded payload.
uint16_t* Halves(const Buffer& payload) {
  return reinterpret_cast<uint16_t*>(payload.data());
}

// Encodes `count` values of one frame. Returns the frame's exponent
// (FrameHeader::exponent).
int Encode(WireType wire, const float* values, int64_t count,
           uint16_t* halves) {
  if (wire == WireType::kFloat16) {
    return EncodeFloat16Frame(values, count, halves);
  }
  ToBfloat16(values, count, halves);
  return 0;
}

// Decodes `count` values of one frame, which has this exponent.
void Decode(WireType wire, int exponent, const uint16_t* halves, int64_t count,
            float* values) {
  if (wire == WireType::kFloat16) {
    DecodeFloat16Frame(halves, count, exponent, values);
  } else {
    FromBfloat16(halves, count, values);
  }
}

}  // namespace

// The encoded values go to new memory. The float32 values must not be
// overwritten, because they may be parameters.
void EncodePayload(Frame& frame) {
  FrameHeader& header = frame.header;
  if (!IsEncoded(header)) return;
  const int64_t count = frame.payload.float_count();
  NEREUS_CHECK(count * WireBytes(header.wire) == header.payload_bytes)
      << DescribeFrame(header) << ", " << count << " values";
  // In a simulation that models only sizes, a payload has no values.
  if (frame.payload.data() == nullptr) {
    frame.payload = Buffer::SizeOnly(header.payload_bytes);
    return;
  }
  const Buffer encoded = Buffer::Allocate(header.payload_bytes);
  header.exponent = static_cast<int8_t>(
      Encode(header.wire, frame.payload.floats(), count, Halves(encoded)));
  frame.payload = encoded;
}

void DecodePayload(const FrameHeader& header, const Buffer& payload,
                   const Buffer& values) {
  const int64_t count = values.float_count();
  NEREUS_CHECK(count * WireBytes(header.wire) == payload.bytes())
      << DescribeFrame(header) << ", " << count << " values";
  if (values.data() == nullptr || payload.data() == nullptr) return;
  Decode(header.wire, header.exponent, Halves(payload), count, values.floats());
}

BadValue AccumulatePayload(const Accumulate& accumulate) {
  const Addend& addend = accumulate.addend;
  float* const sum = accumulate.sum.floats();
  const int64_t count = accumulate.sum.float_count();
  const int64_t base_bytes = accumulate.base.bytes();
  NEREUS_CHECK(count * WireBytes(addend.wire) == addend.payload.bytes() &&
               (base_bytes == 0 || base_bytes == accumulate.sum.bytes()))
      << addend.payload.bytes() << " bytes and a base of " << base_bytes
      << " bytes to " << count << " values";
  float decoded[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    // If the addend replaces the sum, its values are decoded into the memory of
    // the sum, and no addition follows.
    float* const values = accumulate.replaces ? sum + start : decoded;
    Decode(addend.wire, addend.exponent, Halves(addend.payload) + start, length,
           values);
    if (addend.check.has_value()) {
      const int64_t found = FindTooLarge(values, static_cast<size_t>(length));
      if (found >= 0) return {start + found, values[found]};
    }
    if (base_bytes > 0) {
      AddScaledTo(accumulate.base.data() + sizeof(float) * start,
                  reinterpret_cast<const uint8_t*>(values), length,
                  accumulate.factor, reinterpret_cast<uint8_t*>(sum + start));
    } else if (!accumulate.replaces) {
      AddScaled(reinterpret_cast<const uint8_t*>(values), length,
                accumulate.factor, reinterpret_cast<uint8_t*>(sum + start));
    } else if (accumulate.factor != 1.0f) {
      ScaleTo(values, length, accumulate.factor, values);
    }
  }
  return {};
}

void RoundToWire(WireType wire, const Buffer& values) {
  if (wire == WireType::kFloat32 || values.data() == nullptr) return;
  const int64_t elements = values.float_count();
  const Buffer halves =
      Buffer::Allocate(std::min(elements, kFrameElementsMax) * WireBytes(wire));
  // The loop takes one frame at a time, because each fp16 frame has its own
  // scale.
  for (int64_t index = 0; index < FrameCount(elements); ++index) {
    float* const frame = values.floats() + index * kFrameElementsMax;
    const int64_t count = FrameGrid(elements).Length(index);
    const int exponent = Encode(wire, frame, count, Halves(halves));
    Decode(wire, exponent, Halves(halves), count, frame);
  }
}

}  // namespace nereus
