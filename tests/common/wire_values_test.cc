// Values on the wire in each format: encoding, decoding, and adding of
// payloads. Bounds on the error of fp16 follow from its eleven bits.

#include "common/driver/wire_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "common/compute/frame_halves.h"
#include "common/compute/half.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::Each;

Frame FrameOf(WireType wire, const std::vector<float>& values) {
  Frame frame;
  frame.header.kind = FrameKind::kContribution;
  frame.header.wire = wire;
  frame.header.payload_bytes =
      static_cast<uint32_t>(values.size() * WireBytes(wire));
  frame.payload = FloatBuffer(values);
  return frame;
}

std::vector<float> ThereAndBack(WireType wire,
                                const std::vector<float>& values) {
  Frame frame = FrameOf(wire, values);
  EncodePayload(frame);
  EXPECT_EQ(frame.payload.bytes(), frame.header.payload_bytes);
  const Buffer decoded =
      Buffer::Allocate(static_cast<int64_t>(values.size() * sizeof(float)));
  DecodePayload(frame.header, frame.payload, decoded);
  return FloatsOf(decoded);
}

// Returns values with magnitudes from 2^low to 2^high and both signs.
std::vector<float> Spread(int64_t count, int low, int high, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const double exponent = low + (high - low) * random.Uniform();
    const double sign = random.Chance(0.5) ? 1 : -1;
    values.push_back(static_cast<float>(sign * std::exp2(exponent)));
  }
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(WireValuesTest, Float32IsSentUnchanged) {
  Frame frame = FrameOf(WireType::kFloat32, {1.0f, 2.0f, 3.0f});
  const uint8_t* const before = frame.payload.data();
  EncodePayload(frame);
  EXPECT_EQ(frame.payload.data(), before);
  EXPECT_EQ(frame.header.exponent, 0);
  EXPECT_FALSE(IsEncoded(frame.header));
}

TEST(WireValuesTest, Bfloat16IsOnlyConverted) {
  const std::vector<float> values = Spread(5000, -140, 127, 1);
  const std::vector<float> got = ThereAndBack(WireType::kBfloat16, values);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(got[i], scalar::FromBfloat16(scalar::ToBfloat16(values[i])));
  }
}

// fp16 without an exponent ends at 65504 and 2^-24.
TEST(WireValuesTest, Float16KeepsElevenBitsAtEachMagnitude) {
  for (int top = -95; top <= 127; top += 3) {
    SCOPED_TRACE(top);
    const std::vector<float> values = Spread(3000, top - 28, top, top + 1000);
    const std::vector<float> got = ThereAndBack(WireType::kFloat16, values);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(got[i])) << values[i];
      ASSERT_NEAR(got[i], values[i], std::fabs(values[i]) * std::exp2(-11));
    }
  }
}

TEST(WireValuesTest, Float16ErrorsAreSmallBesideTheLargestValue) {
  std::vector<float> values = Spread(3000, -60, -10, 3);
  values[77] = 1.0f;
  const std::vector<float> got = ThereAndBack(WireType::kFloat16, values);
  for (size_t i = 0; i < values.size(); ++i) {
    const double relative = std::fabs(values[i]) * std::exp2(-11);
    ASSERT_NEAR(got[i], values[i], std::max(relative, std::exp2(-39)));
  }
}

TEST(WireValuesTest, RoundingIsIdempotent) {
  for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      Random random(seed);
      const int top = static_cast<int>(random.Below(240)) - 120;
      const int64_t count = 1 + static_cast<int64_t>(random.Below(50));
      std::vector<float> values = Spread(count, top - 45, top, seed);
      // The largest value rounds up to the next power of two.
      if (random.Chance(0.5)) {
        values[0] = static_cast<float>(std::exp2(top) * (1 + 0x1.ffffp-1) / 2);
      }
      const std::vector<float> once = ThereAndBack(wire, values);
      ASSERT_TRUE(SameBits(ThereAndBack(wire, once), once))
          << WireTypeName(wire) << ", seed " << seed;
    }
  }
}

TEST(WireValuesTest, ZerosAndNonFiniteValuesSurvive) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
    EXPECT_THAT(ThereAndBack(wire, std::vector<float>(100, 0.0f)), Each(0.0f));
    const std::vector<float> got =
        ThereAndBack(wire, {kInfinity, 1e-30f, -kInfinity, kNaN, 0.0f, 2e-30f});
    EXPECT_EQ(got[0], kInfinity);
    EXPECT_NEAR(got[1], 1e-30f, 1e-32f);
    EXPECT_EQ(got[2], -kInfinity);
    EXPECT_TRUE(std::isnan(got[3]));
    EXPECT_EQ(got[4], 0.0f);
    EXPECT_NEAR(got[5], 2e-30f, 2e-32f);
  }
}

// Each exponent that a header may have can be decoded.
TEST(WireValuesTest, HighestAndLowestExponentsAreDecoded) {
  for (const int exponent : {kHalfExponentMin, 0, kHalfExponentMax}) {
    FrameHeader header;
    header.wire = WireType::kFloat16;
    header.exponent = static_cast<int8_t>(exponent);
    header.payload_bytes = 4;
    const Buffer payload = Buffer::Allocate(4);
    const uint16_t halves[] = {scalar::ToFloat16(1.5f),
                               scalar::ToFloat16(-0.25f)};
    std::memcpy(payload.data(), halves, sizeof(halves));
    const Buffer values = Buffer::Allocate(8);
    DecodePayload(header, payload, values);
    EXPECT_EQ(values.floats()[0], std::ldexp(1.5f, exponent));
    EXPECT_EQ(values.floats()[1], std::ldexp(-0.25f, exponent));
  }
}

TEST(WireValuesTest, AddingAPayloadEqualsDecodingAndAdding) {
  for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
    for (const int64_t count : {1, 1023, 1024, 1025, 65536}) {
      Frame frame = FrameOf(wire, Spread(count, -30, 20, count));
      const std::vector<float> decoded =
          ThereAndBack(wire, FloatsOf(frame.payload));
      EncodePayload(frame);
      const std::vector<float> before = Spread(count, -30, 20, count + 1);
      for (const bool replaces : {false, true}) {
        for (const float factor : {1.0f, 0.3f}) {
          const Buffer sum = FloatBuffer(before);
          Addend addend(frame);
          if (count % 2 == 0) addend.check = ValueCheck();
          EXPECT_LT(AccumulatePayload({sum, addend, replaces, factor}).index,
                    0);
          std::vector<float> expected = replaces ? decoded : before;
          for (int64_t i = 0; i < count; ++i) {
            if (!replaces) expected[i] += decoded[i];
            expected[i] *= factor;
          }
          EXPECT_TRUE(SameBits(FloatsOf(sum), expected)) << count;
          if (replaces) continue;
          const Buffer apart = Buffer::AllocateZeroed(count * 4);
          EXPECT_LT(AccumulatePayload(
                        {apart, addend, false, factor, FloatBuffer(before)})
                        .index,
                    0);
          EXPECT_TRUE(SameBits(FloatsOf(apart), expected)) << count;
        }
      }
    }
  }
}

TEST(WireValuesTest, FirstNonFiniteValueOfAPayloadIsFound) {
  for (const WireType wire : {WireType::kBfloat16, WireType::kFloat16}) {
    for (const int64_t at : {0, 1, 1023, 1024, 3000}) {
      std::vector<float> values = Spread(3001, -30, 20, at);
      values[at] = -std::numeric_limits<float>::infinity();
      if (at < 3000) values.back() = std::numeric_limits<float>::quiet_NaN();
      Frame frame = FrameOf(wire, values);
      EncodePayload(frame);
      for (const bool replaces : {false, true}) {
        Accumulate accumulate{Buffer::AllocateZeroed(3001 * 4), Addend(frame),
                              replaces};
        // The values are not checked.
        EXPECT_LT(AccumulatePayload(accumulate).index, 0);
        accumulate.addend.check = ValueCheck();
        const BadValue found = AccumulatePayload(accumulate);
        EXPECT_EQ(found.index, at);
        EXPECT_EQ(found.value, values[at]);
      }
    }
  }
}

// Each frame has its own scale.
TEST(WireValuesTest, RoundToWireGivesTheReceivedValues) {
  std::vector<float> values = Spread(65536, -20, 10, 4);
  const std::vector<float> small = Spread(65537, -80, -60, 5);
  values.insert(values.end(), small.begin(), small.end());
  const JobPtr job = TestJob(1, 1, {VectorLayer("v", 131073)});
  for (const WireType wire : kWireTypes) {
    Job routed = *job;
    routed.routes[0].wire = wire;
    FrameHeader header;
    header.kind = FrameKind::kSum;
    std::vector<float> received;
    CutIntoFrames(routed, header, FloatBuffer(values), [&](Frame frame) {
      EncodePayload(frame);
      const Buffer decoded = Buffer::Allocate(FloatBytes(frame.header));
      if (IsEncoded(frame.header)) {
        DecodePayload(frame.header, frame.payload, decoded);
      }
      const std::vector<float> part =
          FloatsOf(IsEncoded(frame.header) ? decoded : frame.payload);
      received.insert(received.end(), part.begin(), part.end());
    });
    const Buffer rounded = FloatBuffer(values);
    RoundToWire(wire, rounded);
    EXPECT_TRUE(SameBits(FloatsOf(rounded), received)) << WireTypeName(wire);
  }
}

TEST(WireValuesTest, BuffersWithoutBytesHaveTheEncodedSize) {
  Frame frame = FrameOf(WireType::kFloat16, {1.0f, 2.0f});
  frame.payload = Buffer::SizeOnly(8);
  EncodePayload(frame);
  EXPECT_EQ(frame.payload.bytes(), 4);
  EXPECT_EQ(frame.payload.data(), nullptr);
  DecodePayload(frame.header, frame.payload, Buffer::SizeOnly(8));
  RoundToWire(WireType::kFloat16, Buffer::SizeOnly(8));
}

}  // namespace
}  // namespace nereus
