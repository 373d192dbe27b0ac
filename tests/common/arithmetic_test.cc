#include "common/driver/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "common/compute/factor_gradient.h"
#include "common/compute/optimizer.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

// Copies `values` to an address that is not a multiple of 4, as in the middle
// of a message.
Buffer UnalignedBuffer(const std::vector<float>& values, int64_t shift) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  const Buffer memory = Buffer::Allocate(bytes + shift);
  const Buffer part = memory.Slice(shift, bytes);
  std::memcpy(part.data(), values.data(), static_cast<size_t>(bytes));
  return part;
}

TEST(ArithmeticTest, CopyReplacesTheDestination) {
  const Buffer destination = FloatBuffer({9, 9, 9});
  ExecuteArithmetic(CopyValues{destination, FloatBuffer({1, 2, 3})});
  EXPECT_EQ(FloatsOf(destination), (std::vector<float>{1, 2, 3}));
}

TEST(ArithmeticTest, AddAccumulates) {
  const Buffer sum = FloatBuffer({1, 2, 3});
  const Buffer addend = FloatBuffer({10, 20, 30});
  ExecuteArithmetic(Accumulate{sum, Addend(addend)});
  ExecuteArithmetic(Accumulate{sum, Addend(addend)});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{21, 42, 63}));
  EXPECT_EQ(FloatsOf(addend), (std::vector<float>{10, 20, 30}));
}

TEST(ArithmeticTest, FirstAddendReplacesTheSum) {
  const Buffer sum = FloatBuffer({NAN, 2, 3});
  ExecuteArithmetic(
      Accumulate{sum, Addend(FloatBuffer({10, 20, 30})), /*replaces=*/true});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{10, 20, 30}));
  ExecuteArithmetic(Accumulate{sum, Addend(FloatBuffer({2, 4, 6})),
                               /*replaces=*/true,
                               /*factor=*/0.5f});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{1, 2, 3}));
}

TEST(ArithmeticTest, BaseCountsInPlaceOfTheOldSum) {
  const Buffer sum = FloatBuffer({NAN, 2, 3});
  const Buffer base = FloatBuffer({1, 2, 3});
  ExecuteArithmetic(Accumulate{sum, Addend(FloatBuffer({3, 6, 9})),
                               /*replaces=*/false, /*factor=*/0.5f, base});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(FloatsOf(base), (std::vector<float>{1, 2, 3}));
}

TEST(ArithmeticTest, FactorAppliesToTheNewSum) {
  const Buffer sum = FloatBuffer({1, 2});
  ExecuteArithmetic(Accumulate{sum, Addend(FloatBuffer({3, 6})),
                               /*replaces=*/false,
                               /*factor=*/0.25f});
  EXPECT_EQ(FloatsOf(sum), (std::vector<float>{1, 2}));
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

TEST(ArithmeticTest, ScaleMultiplies) {
  const Buffer values = FloatBuffer({1, -2, 0, 8});
  ExecuteArithmetic(ScaleValues{values, 0.25f});
  EXPECT_EQ(FloatsOf(values), (std::vector<float>{0.25f, -0.5f, 0, 2}));
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

}  // namespace
}  // namespace nereus
