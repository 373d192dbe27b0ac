// Reports of workers about the rows of their factors.

#include "common/protocol/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/status.h"

namespace nereus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<LayerSpec> SomeModel() {
  return {{"conv", LayerKind::kConvolution, 8, 9, 72, 4},
          {"fc", LayerKind::kFullyConnected, 4, 3, 12, 0, true}};
}

TEST(FactorRowsTest, LostFactorsStayLostAndTheLargestRowsCount) {
  FactorRows sum;
  EXPECT_TRUE(sum.Add({{0, 4, 7}}));
  EXPECT_FALSE(sum.Add({{0, 3, 0}}));
  EXPECT_TRUE(sum.Add({{0, 5, kFactorsLost}}));
  EXPECT_FALSE(sum.Add({{0, 5, 9}}));
  EXPECT_THAT(sum.rows, ElementsAre(0, 5, kFactorsLost));
}

TEST(FactorRowsTest, ReportOfTheModelIsAccepted) {
  for (const int64_t rows :
       {kRowsNotKnown, kFactorsLost, int64_t{1}, kLayerRowsMax}) {
    const absl::Status status = CheckFactorRows({{0, rows}}, SomeModel());
    EXPECT_TRUE(status.ok()) << status;
  }
}

struct BadReport {
  const char* name;
  std::vector<int64_t> rows;
  const char* message;
};

class FactorRowsErrorTest : public testing::TestWithParam<BadReport> {};

TEST_P(FactorRowsErrorTest, IsRefusedByTheWrongValue) {
  const absl::Status status = CheckFactorRows({GetParam().rows}, SomeModel());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, FactorRowsErrorTest,
    testing::Values(
        BadReport{"TooFew", {0}, "has 1 layers, the model has 2"},
        BadReport{"TooMany", {0, 0, 0}, "has 3 layers, the model has 2"},
        BadReport{"Negative", {0, -2}, "layer fc has -2 rows"},
        BadReport{
            "TooLarge", {0, kLayerRowsMax + 1}, "layer fc has 1073741825 rows"},
        BadReport{"NoFactors", {4, 0}, "layer conv has 4 rows of factors"},
        BadReport{"NoFactorsToLose",
                  {kFactorsLost, 0},
                  "layer conv has -1 rows of factors"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nereus
