// Arithmetic of actions, and values on the wire in each format: encoding,
// decoding, and adding of payloads. Bounds on the error of fp16 follow from its
// eleven bits.

#include "common/driver/arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "common/base/random.h"
#include "common/compute/factor_gradient.h"
#include "common/compute/frame_halves.h"
#include "common/compute/half.h"
#include "common/compute/optimizer.h"
#include "common/driver/wire_values.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::Each;

// Copies `values` to an address that is not a multiple of 4, as in the middle
// of a message.
Buffer UnalignedBuffer(const std::vector<float>& values, int64_t shift) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  const Buffer memory = Buffer::Allocate(bytes + shift);
  const Buffer part = memory.Slice(shift, bytes);
  std::memcpy(part.data(), values.data(), static_cast<size_t>(bytes));
  return part;
}

TEST(ArithmeticTest, FactorAppliesToTheNewSumOfAllItsTerms) {
  const Addend addend(FloatBuffer({10, 20, 30}));
  const Buffer base = FloatBuffer({2, 4, 6});
  const struct {
    std::vector<float> before;
    bool replaces;
    Buffer base;
    std::vector<float> sum;
  } kCases[] = {{{2, 4, 6}, false, Buffer(), {6, 12, 18}},
                {{NAN, 4, 6}, true, Buffer(), {5, 10, 15}},
                {{NAN, 2, 3}, false, base, {6, 12, 18}}};
  for (const auto& c : kCases) {
    const Buffer sum = FloatBuffer(c.before);
    ExecuteArithmetic(
        Accumulate{sum, addend, c.replaces, /*factor=*/0.5f, c.base});
    EXPECT_EQ(FloatsOf(sum), c.sum);
  }
  EXPECT_EQ(FloatsOf(addend.payload), (std::vector<float>{10, 20, 30}));
  EXPECT_EQ(FloatsOf(base), (std::vector<float>{2, 4, 6}));
}

TEST(ArithmeticTest, NonFiniteAddendIsReportedAndNotAdded) {
  const Buffer sum = FloatBuffer({1, 2, 3});
  Accumulate accumulate{sum, Addend(UnalignedBuffer({5, HUGE_VALF, NAN}, 1))};
  // The action does not check its values.
  EXPECT_LT(ExecuteArithmetic(accumulate).index, 0);
  for (const bool replaces : {false, true}) {
    const Buffer kept = FloatBuffer({1, 2, 3});
    accumulate.sum = kept;
    accumulate.replaces = replaces;
    accumulate.addend.check = ValueCheck();
    const BadValue found = ExecuteArithmetic(accumulate);
    EXPECT_EQ(found.index, 1);
    EXPECT_EQ(found.value, HUGE_VALF);
    EXPECT_EQ(FloatsOf(kept), (std::vector<float>{1, 2, 3}));
  }
}

TEST(ArithmeticTest, ChecksFindTheFirstNonFiniteValue) {
  EXPECT_LT(ExecuteArithmetic(CheckValues{FloatBuffer({1, 2}), {}}).index, 0);
  const BadValue found =
      ExecuteArithmetic(CheckValues{FloatBuffer({1, -HUGE_VALF, NAN}), {}});
  EXPECT_EQ(found.index, 1);
  EXPECT_EQ(found.value, -HUGE_VALF);
}

TEST(ArithmeticTest, PayloadMayStartAtAnyByte) {
  for (int64_t shift = 0; shift < 8; ++shift) {
    for (const int64_t count : {1, 7, 8, 9, 1000}) {
      const std::vector<float> values = IntegerValues(count, shift);
      const Buffer sum = FloatBuffer(values);
      ExecuteArithmetic(
          Accumulate{sum, Addend(UnalignedBuffer(values, shift))});
      const Buffer copy = FloatBuffer(std::vector<float>(count, 0.0f));
      ExecuteArithmetic(CopyValues{copy, UnalignedBuffer(values, shift)});
      std::vector<float> doubled = values;
      for (float& value : doubled) value *= 2;
      EXPECT_EQ(FloatsOf(sum), doubled) << count << " at " << shift;
      EXPECT_EQ(FloatsOf(copy), values) << count << " at " << shift;
    }
  }
}

TEST(ArithmeticTest, OnlyTheSliceIsTouched) {
  const Buffer whole = FloatBuffer({1, 2, 3, 4});
  ExecuteArithmetic(
      Accumulate{whole.Slice(4, 8), Addend(FloatBuffer({10, 10}))});
  EXPECT_EQ(FloatsOf(whole), (std::vector<float>{1, 12, 13, 4}));
  ExecuteArithmetic(ScaleValues{whole.Slice(12, 4), 0.5f});
  EXPECT_EQ(FloatsOf(whole), (std::vector<float>{1, 12, 13, 2}));
  ExecuteArithmetic(CopyValues{whole.Slice(0, 4), FloatBuffer({7})});
  EXPECT_EQ(FloatsOf(whole), (std::vector<float>{7, 12, 13, 2}));
}

// Two finite gradients may have an infinite sum, and one may be too large for
// the optimizer's state. The next step would make NaNs of all parameters.
TEST(ArithmeticTest, UpdateFindsAResultThatIsNotFinite) {
  struct Case {
    UpdateRule rule;
    float gradient;
    float parameter;
    float found;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Case& each :
       {Case{UpdateRule::kSgd, kInfinity, 1.0f, -kInfinity},
        Case{UpdateRule::kSgd, -3e38f, 3.4e38f, kInfinity},
        Case{UpdateRule::kAdam, 1e21f, 1.0f, kInfinity},
        Case{UpdateRule::kAdam, kInfinity, 1.0f, kInfinity}}) {
    for (const int64_t at : {0, 1023, 1024, 2999}) {
      std::vector<float> gradient(3000, 0.5f), parameters(3000, 1.0f);
      gradient[at] = each.gradient;
      parameters[at] = each.parameter;
      OptimizerOptions options;
      options.rule = each.rule;
      options.learning_rate = 1.0f;
      UpdateParameters update{0,
                              options,
                              /*step=*/3,
                              /*gradient_scale=*/1.0f,
                              FloatBuffer(gradient),
                              FloatBuffer(parameters),
                              FloatBuffer(std::vector<float>(
                                  3000 * OptimizerStateCount(each.rule))),
                              FloatBuffer(parameters),
                              ValueCheck{.of = Checked::kUpdate}};
      const BadValue found = ExecuteArithmetic(update);
      EXPECT_EQ(found.index, at);
      EXPECT_FALSE(std::isfinite(found.value));
      update.check.reset();
      EXPECT_LT(ExecuteArithmetic(update).index, 0);
    }
  }
}

TEST(ArithmeticTest, ProductThatOverflowsIsFound) {
  // 2 rows: the gradient has 2 x 2 values and 2 of the bias.
  MultiplyFactors multiply{/*rows=*/2,
                           /*m=*/2,
                           /*n=*/2,
                           /*bias=*/true,
                           /*scale=*/0.5f,
                           FloatBuffer({1, 3e20f, 1, 3e20f}),
                           FloatBuffer({1, 3e20f, 1, 3e20f}),
                           FloatBuffer(std::vector<float>(6)),
                           /*begin=*/0,
                           /*end=*/2};
  EXPECT_LT(ExecuteArithmetic(multiply).index, 0);
  multiply.check = ValueCheck{.of = Checked::kMean};
  EXPECT_EQ(ExecuteArithmetic(multiply).index, 3);
}

TEST(ArithmeticTest, UpdateParametersRunsTheOptimizer) {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    OptimizerOptions options;
    options.rule = rule;
    const std::vector<float> gradient = {1, -2, 3};
    std::vector<float> parameters = {4, 5, 6};
    std::vector<float> state(3 * OptimizerStateCount(rule), 0.5f);
    UpdateParameters update{0,
                            options,
                            /*step=*/3,
                            /*gradient_scale=*/0.5f,
                            FloatBuffer(gradient),
                            FloatBuffer(parameters),
                            FloatBuffer(state),
                            FloatBuffer({0, 0, 0}),
                            /*check=*/std::nullopt};
    ExecuteArithmetic(update);
    EXPECT_EQ(FloatsOf(update.parameters), parameters);
    EXPECT_EQ(FloatsOf(update.gradient), gradient);
    ApplyOptimizer(options, 3, 3, 0.5f, gradient.data(), parameters.data(),
                   state.data(), parameters.data());
    EXPECT_EQ(FloatsOf(update.updated), parameters);
    EXPECT_EQ(FloatsOf(update.state), state);

    UpdateParameters in_place = update;
    in_place.updated = in_place.parameters;
    in_place.state =
        FloatBuffer(std::vector<float>(3 * OptimizerStateCount(rule), 0.5f));
    ExecuteArithmetic(in_place);
    EXPECT_EQ(FloatsOf(in_place.parameters), parameters);
  }
}

TEST(ArithmeticTest, FactorsAreMultiplied) {
  const std::vector<float> output_gradient = IntegerValues(3 * 2, 1);
  const std::vector<float> input = IntegerValues(3 * 4, 2);
  const MultiplyFactors multiply{/*rows=*/3,
                                 /*m=*/2,
                                 /*n=*/4,
                                 /*bias=*/true,
                                 /*scale=*/0.5f,
                                 FloatBuffer(output_gradient),
                                 FloatBuffer(input),
                                 FloatBuffer(std::vector<float>(10, 0.0f)),
                                 /*begin=*/0,
                                 /*end=*/2};
  ExecuteArithmetic(multiply);
  std::vector<float> expected(10);
  FactorGradient(3, 2, 4, true, 0.5f, output_gradient.data(), input.data(),
                 expected.data());
  EXPECT_EQ(FloatsOf(multiply.gradient), expected);

  // The addend is added before the sum is scaled.
  MultiplyFactors sum = multiply;
  const std::vector<float> addend = IntegerValues(10, 3);
  sum.addend = FloatBuffer(addend);
  sum.gradient = FloatBuffer(std::vector<float>(10, 7.0f));
  ExecuteArithmetic(sum);
  std::vector<float> with_addend(10);
  for (size_t i = 0; i < addend.size(); ++i) {
    with_addend[i] = expected[i] + 0.5f * addend[i];
  }
  EXPECT_EQ(FloatsOf(sum.gradient), with_addend);

  // Last row of the matrix, and the bias.
  MultiplyFactors part = multiply;
  part.begin = 1;
  part.gradient = FloatBuffer(std::vector<float>(6, 0.0f));
  ExecuteArithmetic(part);
  EXPECT_EQ(FloatsOf(part.gradient),
            std::vector<float>(expected.begin() + 4, expected.end()));
  part.addend = sum.addend.Slice(4 * 4, 6 * 4);
  ExecuteArithmetic(part);
  EXPECT_EQ(FloatsOf(part.gradient),
            std::vector<float>(with_addend.begin() + 4, with_addend.end()));
}

TEST(ArithmeticTest, ActionsOnBuffersWithoutBytesDoNothing) {
  const Buffer size = Buffer::SizeOnly(int64_t{1} << 40);
  ExecuteArithmetic(CopyValues{size, size});
  ExecuteArithmetic(Accumulate{size, Addend(size)});
  EXPECT_LT(ExecuteArithmetic(CheckValues{size, {}}).index, 0);
  ExecuteArithmetic(ScaleValues{size, 2.0f});
  ExecuteArithmetic(
      UpdateParameters{0, {}, 0, 1.0f, size, size, size, size, {}});
  ExecuteArithmetic(MultiplyFactors{1 << 20, 1 << 10, 1 << 10, true, 1.0f, size,
                                    size, size, 0, 1 << 10});
}

TEST(ArithmeticTest, EmptyBuffersAreAllowed) {
  const Buffer none = Buffer::Allocate(0);
  ExecuteArithmetic(CopyValues{none, none});
  ExecuteArithmetic(CopyValues{none, Buffer()});
  ExecuteArithmetic(Accumulate{none, Addend(none)});
  ExecuteArithmetic(ScaleValues{none, 2.0f});
}

TEST(ArithmeticDeathTest, LengthsMustAgree) {
  const Buffer two = FloatBuffer({1, 2});
  const Buffer three = FloatBuffer({1, 2, 3});
  EXPECT_DEATH(ExecuteArithmetic(CopyValues{two, three}), "8 from 12");
  EXPECT_DEATH(ExecuteArithmetic(Accumulate{three, Addend(two)}), "12 plus 8");
}

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
