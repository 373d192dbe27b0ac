// Layers and models: their names, limits, descriptions, and the signature that
// tells models apart; schemes and wire types. BadLayerTest has a row for each
// rule.

#include "common/plan/layer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/scheme.h"
#include "common/plan/wire_type.h"
#include "tests/testing/status_matchers.h"

namespace nereus {
namespace {

using testing::HasSubstr;

LayerSpec Fc6() {
  return {"fc6", LayerKind::kFullyConnected, 4096, 25088, 102764544, 32, true};
}
LayerSpec Conv1() {
  return {"conv1", LayerKind::kConvolution, 64, 27, 1792, 50176};
}

TEST(LayerSpecTest, DescriptionHoldsEachField) {
  EXPECT_EQ(DescribeLayer(Fc6()),
            "fc6 fc 4096x25088, 102764544 parameters, 32 rows, with factors");
}

TEST(LayerSpecTest, RowsOfFactorsMayBeUnknownOrLost) {
  LayerSpec layer = Fc6();
  EXPECT_TRUE(layer.may_send_factors());
  layer.rows = kRowsNotKnown;
  EXPECT_TRUE(ValidateLayer(layer).ok()) << ValidateLayer(layer);
  EXPECT_FALSE(layer.may_send_factors());
  EXPECT_THAT(DescribeLayer(layer),
              HasSubstr("parameters, with factors, rows not known yet"));
  layer.rows = kFactorsLost;
  EXPECT_TRUE(ValidateLayer(layer).ok()) << ValidateLayer(layer);
  EXPECT_FALSE(layer.may_send_factors());
  EXPECT_THAT(DescribeLayer(layer),
              HasSubstr("parameters, without factors, which it had"));
}

TEST(LayerSpecTest, DescriptionOfHostileNameIsShortAndPrintable) {
  LayerSpec layer = Conv1();
  layer.name = "\x1b[31m" + std::string(1000000, 'x');
  const std::string description = DescribeLayer(layer);
  EXPECT_LT(description.size(), 400u);
  EXPECT_EQ(description.find('\x1b'), std::string::npos);
}

TEST(ValidateLayersTest, LayersWithAndWithoutBiasAreAccepted) {
  LayerSpec bare = Fc6();
  bare.name = "bare";
  bare.parameters = bare.m * bare.n;
  const absl::Status status = ValidateLayers({Conv1(), Fc6(), bare});
  EXPECT_TRUE(status.ok()) << status;
}

struct BadLayer {
  const char* name;
  std::function<void(LayerSpec&)> spoil;
  const char* message;
};

class BadLayerTest : public testing::TestWithParam<BadLayer> {};

TEST_P(BadLayerTest, BadLayerIsRefusedWithItsValues) {
  std::vector<LayerSpec> layers = {Conv1(), Fc6()};
  GetParam().spoil(layers[1]);
  EXPECT_THAT(ValidateLayers(layers), IsInvalidArgument(GetParam().message));
}

const BadLayer kBadLayerRows[] = {
    {"empty_name", [](LayerSpec& l) { l.name.clear(); }, "empty name"},
    {"long_name", [](LayerSpec& l) { l.name.assign(257, 'n'); },
     "257 bytes, at most 256"},
    {"newline_in_name", [](LayerSpec& l) { l.name = "a\nb"; },
     "a\\nb is not printable ASCII"},
    {"name_not_ascii", [](LayerSpec& l) { l.name = "caf\xe9"; },
     "caf\\xe9 is not printable ASCII"},
    {"same_name", [](LayerSpec& l) { l.name = "conv1"; },
     "two layers have the name conv1"},
    {"unknown_kind", [](LayerSpec& l) { l.kind = static_cast<LayerKind>(77); },
     "unknown kind number 77"},
    {"zero_m", [](LayerSpec& l) { l.m = 0; }, "fc6 has m 0"},
    {"negative_n", [](LayerSpec& l) { l.n = -5; }, "fc6 has n -5"},
    {"product_overflows", [](LayerSpec& l) { l.m = l.n = kLayerParametersMax; },
     "fewer than its matrix 1099511627776x1099511627776"},
    {"too_many_parameters",
     [](LayerSpec& l) { l.parameters = kLayerParametersMax + 1; },
     "fc6 has parameters 1099511627777"},
    {"fewer_than_matrix", [](LayerSpec& l) { l.parameters = 4096 * 25088 - 1; },
     "102760447 parameters, fewer than its matrix 4096x25088"},
    {"half_a_bias", [](LayerSpec& l) { l.parameters = 4096 * 25088 + 2048; },
     "its matrix 4096x25088 102760448, with a bias 102764544"},
    {"zero_rows",
     [](LayerSpec& l) {
       l.rows = 0;
       l.has_factors = false;
     },
     "fc6 has rows 0"},
    {"factors_that_it_never_had",
     [](LayerSpec& l) {
       l.rows = kFactorsLost;
       l.has_factors = false;
     },
     "fc6 has rows -1"},
    {"negative_rows", [](LayerSpec& l) { l.rows = -2; }, "fc6 has rows -2"},
    {"too_many_rows", [](LayerSpec& l) { l.rows = kLayerRowsMax + 1; },
     "fc6 has rows 1073741825"},
    {"factors_of_an_embedding",
     [](LayerSpec& l) { l.kind = LayerKind::kEmbedding; },
     "only fully connected layers have factors"},
    {"model_too_large",
     [](LayerSpec& l) {
       l = {"fc6",
            LayerKind::kVector,
            1,
            kLayerParametersMax,
            kLayerParametersMax,
            1};
     },
     "the model has 1099511629568 parameters with layer fc6"},
};

INSTANTIATE_TEST_SUITE_P(Table, BadLayerTest, testing::ValuesIn(kBadLayerRows),
                         [](const auto& info) { return info.param.name; });

TEST(ValidateLayersTest, EmptyModelIsRefused) {
  EXPECT_EQ(ValidateLayers({}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValidateLayersTest, TooManyLayersAreRefused) {
  std::vector<LayerSpec> layers;
  for (int64_t i = 0; i < kLayersMax; ++i) {
    layers.push_back({std::to_string(i), LayerKind::kVector, 1, 1, 1, 1});
  }
  EXPECT_TRUE(ValidateLayers(layers).ok());
  layers.push_back({"one more", LayerKind::kVector, 1, 1, 1, 1});
  EXPECT_THAT(std::string(ValidateLayers(layers).message()),
              HasSubstr("65537 layers, not from 1 to 65536"));
}

TEST(ModelSignatureTest, SignatureOfAnEmptyModelIsFnvOfZero) {
  // FNV-1a of eight zero bytes, by the published algorithm.
  uint64_t expected = 14695981039346656037u;
  for (int i = 0; i < 8; ++i) expected *= 1099511628211u;
  EXPECT_EQ(ModelSignature({}), expected);
}

TEST(ModelSignatureTest, EachFieldAndTheOrderChangeTheSignature) {
  const std::vector<LayerSpec> model = {Conv1(), Fc6()};
  const uint64_t signature = ModelSignature(model);
  EXPECT_EQ(signature, ModelSignature(std::vector<LayerSpec>(model)));
  EXPECT_NE(signature, ModelSignature({Fc6(), Conv1()}));
  EXPECT_NE(signature, ModelSignature({Conv1()}));

  const std::vector<std::function<void(LayerSpec&)>> changes = {
      [](LayerSpec& l) { l.name = "fc7"; },
      [](LayerSpec& l) { l.kind = LayerKind::kConvolution; },
      [](LayerSpec& l) { std::swap(l.m, l.n); },
      [](LayerSpec& l) { l.n += 1; },
      [](LayerSpec& l) { l.parameters -= l.m; },
      [](LayerSpec& l) { l.rows += 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    std::vector<LayerSpec> changed = model;
    changes[i](changed[1]);
    EXPECT_NE(signature, ModelSignature(changed)) << "change " << i;
  }
}

TEST(ModelSignatureTest, MovingTextBetweenNamesChangesTheSignature) {
  const LayerSpec shape = {"", LayerKind::kVector, 1, 1, 1, 1};
  std::vector<LayerSpec> a = {shape, shape};
  std::vector<LayerSpec> b = a;
  a[0].name = "ab";
  a[1].name = "c";
  b[0].name = "a";
  b[1].name = "bc";
  EXPECT_NE(ModelSignature(a), ModelSignature(b));
}

TEST(CompareModelsTest, FirstDifferenceIsNamedWithBothShapes) {
  LayerSpec theirs = Fc6();
  theirs.n = 9216;
  theirs.parameters = 37752832;
  const absl::Status status =
      CompareModels({Conv1(), Fc6()}, {Conv1(), theirs}, "worker 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "layer 1 of worker 3 is fc6 fc 4096x9216, 37752832 parameters, 32 "
            "rows, with factors; ours is fc6 fc 4096x25088, 102764544 "
            "parameters, 32 rows, with factors");
}

TEST(CompareModelsTest, MissingLayerIsNamed) {
  EXPECT_EQ(
      std::string(
          CompareModels({Conv1(), Fc6()}, {Conv1()}, "worker 3").message()),
      "worker 3 has 1 layers, we have 2; it lacks layer 1, fc6 fc "
      "4096x25088, 102764544 parameters, 32 rows, with factors");
  EXPECT_EQ(std::string(
                CompareModels({Fc6()}, {Fc6(), Conv1()}, "shard 0").message()),
            "shard 0 has 2 layers, we have 1; we lack layer 1, conv1 conv "
            "64x27, 1792 parameters, 50176 rows");
}

LayerSpec WithRows(LayerSpec layer, int64_t rows) {
  layer.rows = rows;
  return layer;
}

TEST(WithRowsOfTest, UnknownRowsBecomeThoseOfTheJob) {
  const LayerSpec unknown = WithRows(Fc6(), kRowsNotKnown);
  const LayerSpec lost = WithRows(Fc6(), kFactorsLost);
  const auto learnt = [](const LayerSpec& job, const LayerSpec& own) {
    return WithRowsOf(std::vector<LayerSpec>{job}, std::vector<LayerSpec>{own})
        .front()
        .rows;
  };
  EXPECT_EQ(learnt(Fc6(), unknown), 32);
  EXPECT_EQ(learnt(lost, unknown), kFactorsLost);
  EXPECT_EQ(learnt(unknown, unknown), kRowsNotKnown);
  // A worker that knows its rows keeps them, unless the layer has no factors.
  EXPECT_EQ(learnt(Fc6(), WithRows(Fc6(), 33)), 33);
  EXPECT_EQ(learnt(unknown, Fc6()), 32);
  EXPECT_EQ(learnt(lost, Fc6()), kFactorsLost);
  // Layers without factors keep what they have, and so do surplus layers.
  EXPECT_EQ(learnt(WithRows(Conv1(), 7), Conv1()), 50176);
  EXPECT_EQ(WithRowsOf({}, std::vector<LayerSpec>{unknown}).front(), unknown);
}

TEST(SchemeTest, OnlyLayersWithFactorsGoByFactors) {
  LayerSpec layer = {"l", LayerKind::kFullyConnected, 2, 3, 6, 1};
  for (const bool has_factors : {false, true}) {
    layer.has_factors = has_factors;
    EXPECT_EQ(SupportsScheme(layer, Scheme::kFactor), has_factors);
    EXPECT_TRUE(SupportsScheme(layer, Scheme::kServer));
    EXPECT_TRUE(SupportsScheme(layer, Scheme::kRing));
  }
}

// A frame's offset has 32 bits. Frames of such a layer between workers would
// wrap, count as repeated, and the round would wait for ever.
TEST(SchemeTest, LayerBeyondAFramesOffsetGoesByTheServersOnly) {
  LayerSpec layer;
  layer.kind = LayerKind::kFullyConnected;
  layer.has_factors = true;
  layer.rows = 1;
  layer.parameters = kPeerParametersMax;
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kFactor));
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kRing));
  ++layer.parameters;
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kServer));
  EXPECT_FALSE(SupportsScheme(layer, Scheme::kFactor));
  EXPECT_FALSE(SupportsScheme(layer, Scheme::kRing));
}

TEST(SchemeTest, OnlySmallLayersGoDirectly) {
  LayerSpec layer = {"l", LayerKind::kVector, 1, 1, kDirectParametersMax, 1};
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kDirect));
  ++layer.parameters;
  EXPECT_FALSE(SupportsScheme(layer, Scheme::kDirect));
}

TEST(WireTypeTest, NamesAreParsedBack) {
  for (const WireType wire : kWireTypes) {
    EXPECT_EQ(*ParseWireType(WireTypeName(wire)), wire);
  }
}

TEST(WireTypeTest, UnknownNamesAreRefusedWithTheKnownNames) {
  for (const char* name : {"", "none", "FP16", "float", "fp8"}) {
    const auto parsed = ParseWireType(name);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()),
                testing::AllOf(testing::HasSubstr(name),
                               testing::HasSubstr("fp32, bf16 and fp16")));
  }
}

TEST(WireTypeTest, EachTypeHasItsBytesPerValue) {
  EXPECT_EQ(WireBytes(WireType::kNone), 0);
  EXPECT_EQ(WireBytes(WireType::kFloat32), 4);
  EXPECT_EQ(WireBytes(WireType::kBfloat16), 2);
  EXPECT_EQ(WireBytes(WireType::kFloat16), 2);
}

}  // namespace
}  // namespace nereus
