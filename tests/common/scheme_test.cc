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

TEST(SchemeTest, UnknownNameIsRefusedWithTheKnownOnes) {
  const absl::Status status = ParseScheme("carrier pigeon").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      testing::HasSubstr("\"carrier pigeon\", known are server, factor, ring"));
}

TEST(SchemeTest, OnlyFullyConnectedLayersHaveFactors) {
  LayerSpec layer = {"l", LayerKind::kFullyConnected, 2, 3, 6, 1};
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kFactor));
  EXPECT_TRUE(SupportsScheme(layer, Scheme::kServer));
  for (const LayerKind kind :
       {LayerKind::kConvolution, LayerKind::kEmbedding, LayerKind::kVector}) {
    layer.kind = kind;
    EXPECT_FALSE(SupportsScheme(layer, Scheme::kFactor))
        << DescribeLayer(layer);
    EXPECT_TRUE(SupportsScheme(layer, Scheme::kServer)) << DescribeLayer(layer);
    EXPECT_TRUE(SupportsScheme(layer, Scheme::kRing)) << DescribeLayer(layer);
  }
}

}  // namespace
}  // namespace nereus
