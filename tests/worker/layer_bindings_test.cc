#include "worker/client/layer_bindings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "tests/testing/machine_harness.h"

namespace nereus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                   const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

void ExpectInvalid(const absl::Status& status, const std::string& message) {
  ExpectRefused(status, absl::StatusCode::kInvalidArgument, message);
}

// The layers of a caller, each with separate memory: "scale" with 3 parameters,
// and "fc", 2 x 3 with a bias.
class LayerBindingsTest : public testing::Test {
 protected:
  LayerBindingsTest() {
    layers_ = {{VectorLayer("scale", 3), Memory(3)},
               {FactorLayer("fc", 2, 3, true, 4), Memory(8)}};
  }
  // Returns memory for `count` floats that belongs to one layer only.
  absl::Span<float> Memory(size_t count) {
    memory_.push_back(std::vector<float>(count));
    return absl::MakeSpan(memory_.back());
  }
  absl::Status Checked() const { return CheckedSpecsIn(layers_).status(); }

  std::vector<std::vector<float>> memory_;
  std::vector<LayerBinding> layers_;
};

TEST_F(LayerBindingsTest, LayersThatFitTheirMemoryAreReturnedInOrder) {
  const auto specs = CheckedSpecsIn(layers_);
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_THAT(*specs, ElementsAre(layers_[0].spec, layers_[1].spec));
  EXPECT_THAT(NamesOf(*specs), ElementsAre("scale", "fc"));
}

TEST_F(LayerBindingsTest, MemoryOfAnotherLengthIsRefusedWithBothLengths) {
  for (const size_t count : {0, 7, 9}) {
    layers_[1].parameters = Memory(count);
    ExpectInvalid(Checked(), "the parameter memory has " +
                                 std::to_string(count) +
                                 " floats, layer fc has 8");
  }
}

TEST_F(LayerBindingsTest, AModelThatIsInvalidIsRefused) {
  layers_[1].spec.name = "scale";
  ExpectInvalid(Checked(), "two layers have the name scale");
  layers_.clear();
  ExpectInvalid(Checked(), "0 layers");
}

TEST_F(LayerBindingsTest, StateMustBeWholeArrays) {
  layers_[0].state = Memory(6);
  layers_[1].state = Memory(16);
  EXPECT_TRUE(Checked().ok()) << Checked();
  layers_[1].state = Memory(15);
  ExpectInvalid(Checked(),
                "the state of layer fc has 15 floats, not a multiple of its 8 "
                "parameters");
}

TEST_F(LayerBindingsTest, AllLayersMustHaveEqualCountsOfStateArrays) {
  layers_[0].state = Memory(6);
  layers_[1].state = Memory(8);
  ExpectInvalid(Checked(),
                "the state of layer fc has 8 floats for 8 parameters, that of "
                "layer scale 6 for 3: all must have as many arrays");
  layers_[1].state = {};
  ExpectInvalid(Checked(), "the state of layer fc has 0 floats");
}

// Tests of CheckState.

TEST_F(LayerBindingsTest, StateIsRefusedWhereTheServersRunTheOptimizer) {
  EXPECT_TRUE(CheckState(layers_, OptimizerPlace::kServer).ok());
  layers_[1].state = Memory(8);
  EXPECT_TRUE(CheckState(layers_, OptimizerPlace::kWorker).ok());
  EXPECT_TRUE(CheckState(layers_, std::nullopt).ok());
  const absl::Status status = CheckState(layers_, OptimizerPlace::kServer);
  ExpectInvalid(status,
                "layer fc has 8 floats of optimizer state, which the job would "
                "ignore");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("ClientOptions::optimizer to kWorker"),
                    HasSubstr("LayerBinding::state empty")));
}

TEST_F(LayerBindingsTest, OffsetsOfADenseGradientFitIntoFrames) {
  LayerSpec spec = layers_[1].spec;
  spec.parameters = int64_t{1} << 32;
  EXPECT_TRUE(CheckFitsFrames(spec).ok());
  ++spec.parameters;
  ExpectRefused(CheckFitsFrames(spec), absl::StatusCode::kInvalidArgument,
                "layer fc has 4294967297 values, more than the 4294967296 of a "
                "gradient that is sent in place of factors: push at most "
                "LayerSpec::rows rows of factors");
}

// Tests of CheckFactors.

struct FactorCase {
  const char* name;
  size_t output_gradient = 4 * 2;
  size_t input = 4 * 3;
  size_t gradient = 0;
  bool needs_gradient = false;
  const char* message = nullptr;  // Null if the factors are valid.
};

class CheckFactorsTest : public testing::TestWithParam<FactorCase> {};

// Layer "fc" is 2 x 3 with a bias, and its batch has 4 rows.
TEST_P(CheckFactorsTest, ComparesEveryLengthWithTheLayers) {
  const FactorCase& sizes = GetParam();
  const std::vector<float> values(100);
  const auto some = [&](size_t count) {
    return absl::MakeConstSpan(values).first(count);
  };
  const absl::Status status =
      CheckFactors(FactorLayer("fc", 2, 3, true, 4),
                   {some(sizes.output_gradient), some(sizes.input)},
                   some(sizes.gradient), sizes.needs_gradient);
  if (sizes.message == nullptr) {
    EXPECT_TRUE(status.ok()) << status;
  } else {
    ExpectInvalid(status, sizes.message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckFactorsTest,
    testing::Values(
        FactorCase{.name = "Good"},
        FactorCase{.name = "GoodWithRoomForTheMean",
                   .gradient = 8,
                   .needs_gradient = true},
        FactorCase{.name = "RoomThatIsNotNeeded", .gradient = 8},
        FactorCase{.name = "ShortOutputGradient",
                   .output_gradient = 7,
                   .message = "the output gradient has 7 floats, layer fc has "
                              "8"},
        FactorCase{.name = "LongOutputGradient",
                   .output_gradient = 9,
                   .message = "the output gradient has 9 floats, layer fc has "
                              "8"},
        FactorCase{.name = "ShortInput",
                   .input = 11,
                   .message = "the input has 11 floats, layer fc has 12"},
        FactorCase{.name = "NoInput",
                   .input = 0,
                   .message = "the input has 0 floats, layer fc has 12"},
        FactorCase{.name = "NoRoomForTheMean",
                   .needs_gradient = true,
                   .message = "the gradient has 0 floats, layer fc has 8"},
        FactorCase{.name = "RoomForTheMatrixAlone",
                   .gradient = 6,
                   .needs_gradient = true,
                   .message = "the gradient has 6 floats, layer fc has 8"},
        FactorCase{.name = "WrongRoomThatIsNotNeeded",
                   .gradient = 6,
                   .message = "the gradient has 6 floats, layer fc has 8"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(LayerBindingsTest, FactorsOfALayerWithoutThemAreRefused) {
  LayerSpec dense = layers_[1].spec;
  dense.has_factors = false;
  const std::vector<float> output_gradient(8);
  const std::vector<float> input(12);
  ExpectInvalid(CheckFactors(dense, {output_gradient, input}, {},
                             /*needs_gradient=*/false),
                "layer fc fc 2x3, 8 parameters, 4 rows, has no factors: its "
                "LayerSpec::has_factors is false");
}

}  // namespace
}  // namespace nereus
