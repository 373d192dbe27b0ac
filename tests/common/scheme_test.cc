#include "common/plan/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nereus {
namespace {

TEST(SchemeTest, NamesAreParsedBack) {
  for (const Scheme scheme : kSchemes) {
    const absl::StatusOr<Scheme> parsed = ParseScheme(SchemeName(scheme));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, scheme);
  }
}

TEST(SchemeTest, UnknownNameIsRefusedWithTheKnownNames) {
  const absl::Status status = ParseScheme("carrier pigeon").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      testing::HasSubstr("\"carrier pigeon\", known are server, factor, ring"));
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

}  // namespace
}  // namespace nereus
